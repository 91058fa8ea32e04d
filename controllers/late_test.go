package controllers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/podreport"
	"istio-pod-network-controller/iptables"
)

// fakeStarts knows when containers were started, by name.
type fakeStarts struct {
	at    map[string]time.Time
	err   error
	asked int
}

func (f *fakeStarts) FirstStart(_ context.Context, sandboxID string, counts func(string) bool) (first time.Time, err error) {
	f.asked++
	for name, at := range f.at {
		if sandboxID == "sandbox-1" && counts(name) && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	return first, f.err
}

// starting returns a bench with containers that were started at some time.
func starting(t *testing.T, at map[string]time.Time) (*bench, *fakeStarts) {
	t.Helper()
	b, starts := newBench(t), &fakeStarts{at: at}
	b.Starts = starts
	b.pods.pod.Spec.Containers = append(b.pods.pod.Spec.Containers, corev1.Container{Name: "app"})
	b.pods.pod.Spec.InitContainers = []corev1.Container{{Name: "istio-validation"}}
	return b, starts
}

func TestAskLate_containerRanBeforeTheRules_isSaidOnce(t *testing.T) {
	began := time.Now().Add(-time.Hour)
	b, starts := starting(t, map[string]time.Time{"app": began})
	b.ensure(t, Changed)
	b.ensure(t, Unchanged)
	b.ensure(t, Unchanged)
	late, err := time.ParseDuration(b.lastReport(t).Late)
	if err != nil || late < time.Hour || late > time.Hour+time.Minute {
		t.Errorf("the report says %q, error %v", b.lastReport(t).Late, err)
	}
	if len(b.reporter.events) != 1 || starts.asked != 1 {
		t.Errorf("events %q, %d questions", b.reporter.events, starts.asked)
	}
	wantGauge(t, b, "late_pods", 1)
}

func TestAskLate_nothingRanBeforeTheRules_isSilent(t *testing.T) {
	past, future := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	for name, c := range map[string]struct {
		at     map[string]time.Time
		by     Hook
		change func(*bench)
	}{
		"no container":                {},
		"one that started after":      {at: map[string]time.Time{"app": future}},
		"proxies of the agent's":      {at: map[string]time.Time{"not-in-the-spec": past}},
		"the proxy and a helper":      {at: map[string]time.Time{"istio-proxy": past, "istio-validation": past}},
		"an early hook":               {at: map[string]time.Time{"app": past}, by: NRI},
		"rules that were lost":        {at: map[string]time.Time{"app": past}, change: func(b *bench) { b.shows(t, podreport.Details{Sandbox: "sandbox-1"}) }},
		"rules of another backend":    {at: map[string]time.Time{"app": past}, change: func(b *bench) { b.backend.drift = iptables.Drift{{Kind: iptables.KindBackend}} }},
		"rules of an earlier release": {at: map[string]time.Time{"app": past}, change: func(b *bench) { b.backend.held["/netns/1"] = "older rules" }},
	} {
		t.Run(name, func(t *testing.T) {
			b, _ := starting(t, c.at)
			if c.change != nil {
				c.change(b)
			}
			s := b.sandbox
			if c.by != "" {
				s.ID, s.NetNS = "sandbox-1", "/netns/1"
			}
			for range 2 {
				if _, err := b.Ensure(t.Context(), cmp.Or(c.by, Watch), s); err != nil {
					t.Fatal(err)
				}
			}
			said := slices.ContainsFunc(b.reporter.events, func(e string) bool { return strings.HasPrefix(e, podreport.ReasonStartedFirst) })
			if r := b.lastReport(t); r.Late != "" || said {
				t.Errorf("the report says %q, events %q", r.Late, b.reporter.events)
			}
		})
	}
}

// shows gives the pod a report of rules.
func (b *bench) shows(t *testing.T, said podreport.Details) {
	t.Helper()
	text, err := json.Marshal(said)
	if err != nil {
		t.Fatal(err)
	}
	b.pods.pod.Annotations[podreport.KeyStatus], b.pods.pod.Annotations[podreport.KeyDetails] = string(podreport.StatusInitialized), string(text)
}

// An agent that finds rules does not know who was first: it keeps what the pod says of the same sandbox.
func TestLearned_reportOfAnEarlierAgent_isKept(t *testing.T) {
	for said, want := range map[podreport.Details]string{
		{Sandbox: "sandbox-1", Late: "1.204s"}: "1.204s",
		{Sandbox: "sandbox-0", Late: "1.204s"}: "",
		{Sandbox: "sandbox-1", Late: "-5s"}:    "",
		{Sandbox: "sandbox-1", Late: "soon"}:   "",
	} {
		b, _ := starting(t, nil)
		b.shows(t, said)
		b.ensure(t, Changed)
		if got := b.lastReport(t).Late; got != want || len(b.reporter.events) > 0 {
			t.Errorf("%+v: the report says %q, want %q; events %q", said, got, want, b.reporter.events)
		}
	}
}

func TestAskLate_runtimeIsAway_isAskedAgain(t *testing.T) {
	b, starts := starting(t, map[string]time.Time{"app": time.Now().Add(-time.Hour)})
	starts.err = errors.New("out of order")
	b.ensure(t, Changed)
	if r := b.lastReport(t); r.Late != "" {
		t.Errorf("without an answer: %q", r.Late)
	}
	starts.err = nil
	b.ensure(t, Unchanged)
	b.ensure(t, Unchanged)
	if r := b.lastReport(t); r.Late == "" || starts.asked != 2 {
		t.Errorf("late %q after %d questions", r.Late, starts.asked)
	}
}

// A first visit that fails must not cost what an earlier agent has found out.
func TestLearned_firstVisitFails_isKept(t *testing.T) {
	b, _ := starting(t, nil)
	b.shows(t, podreport.Details{Sandbox: "sandbox-1", Late: "1.204s"})
	b.backend.err = errors.New("out of order")
	if _, err := b.Ensure(t.Context(), Watch, b.sandbox); err == nil {
		t.Fatal("no error")
	}
	if r := b.lastReport(t); r.Status != podreport.StatusFailed || r.Late != "1.204s" {
		t.Errorf("the failure says %+v", r)
	}
	b.backend.err = nil
	b.ensure(t, Changed)
	if r := b.lastReport(t); r.Late != "1.204s" {
		t.Errorf("afterwards: %+v", r)
	}
	wantGauge(t, b, "late_pods", 1)
}

func TestAskLate_rulesOfAPreemptedPodWereLost_isSilent(t *testing.T) {
	b, starts := starting(t, map[string]time.Time{"app": time.Now().Add(-time.Hour)})
	b.shows(t, podreport.Details{Sandbox: "sandbox-1", SpecHash: "1234"})
	b.pods.pod.Annotations[podreport.KeyStatus] = string(podreport.StatusFailed)
	b.ensure(t, Changed)
	if starts.asked != 0 {
		t.Errorf("events %q", b.reporter.events)
	}
}

// Containers of the sandbox before are no containers of this one.
func TestAskLate_newSandboxFailsLate_isNotMistaken(t *testing.T) {
	b, starts := starting(t, map[string]time.Time{"app": time.Now().Add(-time.Hour)})
	s := b.sandbox
	s.ID, s.NetNS = "sandbox-1", "/netns/1"
	if _, err := b.Ensure(t.Context(), NRI, s); err != nil {
		t.Fatal(err)
	}
	b.finder.sandboxes["uid-1"] = podnet.Sandbox{ID: "sandbox-2", NetNS: "/netns/2"}
	b.backend.errLate = errors.New("out of order")
	if _, err := b.Ensure(t.Context(), Watch, b.sandbox); err == nil {
		t.Fatal("no error")
	}
	if starts.asked != 0 {
		t.Errorf("asked %d times; events %q", starts.asked, b.reporter.events)
	}
}

// A runtime waits for an early hook.
func TestAskLate_earlyHook_doesNotAsk(t *testing.T) {
	b, starts := starting(t, nil)
	starts.err = errors.New("out of order")
	b.ensure(t, Changed)
	s := b.sandbox
	s.ID, s.NetNS = "sandbox-1", "/netns/1"
	if _, err := b.Ensure(t.Context(), NRI, s); err != nil || starts.asked != 1 {
		t.Errorf("error %v, asked %d times", err, starts.asked)
	}
}
