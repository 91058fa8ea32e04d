package controllers

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/outage"
	"istio-pod-network-controller/internal/podnet"
)

// After an outage the watch sends each change since, in order. A pod that opted out and in again in the meantime must keep its rules.
func TestRulesAreRemovedOnlyIfThePodOptsOutNow(t *testing.T) {
	says := func(value string) *corev1.Pod {
		pod := askingPod()
		pod.Annotations[intent.KeyInitialize] = value
		return pod
	}
	for name, c := range map[string]struct {
		by      Hook
		now     *corev1.Pod
		err     error
		want    Result
		wrong   bool
		removed bool
		last    bool // it is not tried again
	}{
		"it opts out":                             {by: Watch, now: says("false"), want: Changed, removed: true},
		"it is in again":                          {by: Watch, now: says("true"), want: Skipped},
		"it is in again, and starts a container":  {by: NRI, now: says("true"), want: Unchanged},
		"it says something that nobody knows":     {by: Watch, now: says("perhaps"), want: Skipped},
		"it is gone, and its containers run":      {by: Watch, err: podnet.ErrNoPod, want: Skipped, last: true},
		"it is gone, and a container starts":      {by: NRI, err: podnet.ErrNoPod, want: Skipped, last: true},
		"the API server is away":                  {by: Watch, err: errors.New("connection refused"), want: Failed, wrong: true},
		"the API server is away, and a container": {by: NRI, err: errors.New("connection refused"), want: Failed, wrong: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.ensure(t, Changed)
			b.pods.pod.Annotations[intent.KeyInitialize] = "false"
			b.pods.current, b.pods.errNow = c.now, c.err
			s := b.sandbox
			s.ID, s.NetNS = "sandbox-1", "/netns/1"
			if got, err := b.Ensure(t.Context(), c.by, s); got != c.want || c.wrong != (err != nil) {
				t.Errorf("result %s, error %v", got, err)
			}
			if gone := b.backend.rules("/netns/1") == ""; gone != c.removed {
				t.Errorf("removed: %t", gone)
			}
			if e, _ := b.Ledger.Of("uid-1"); c.err != nil && e.Retry == c.last {
				t.Error("it is not tried again")
			}
		})
	}
}

// The cache may be late. A pod that has opted in again by the time its sandbox is made must not start without rules.
func TestASandboxOfAPodThatOptsOutIsMadeAsTheAPIServerSaysNow(t *testing.T) {
	for name, c := range map[string]struct {
		by    Hook
		now   string // what the annotation says by now
		err   error
		want  Result
		rules bool
	}{
		"it opts out":                   {by: NRI, now: "false", want: Unchanged},
		"it is in again":                {by: NRI, now: "true", want: Changed, rules: true},
		"it is in again, by way of CNI": {by: CNI, now: "true", want: Changed, rules: true},
		"it is gone":                    {by: NRI, err: podnet.ErrNoPod, want: Unchanged},
		"the API server is away":        {by: NRI, err: errors.New("connection refused"), want: Failed},
		"the API server is away, and the sandbox runs": {by: Watch, err: errors.New("connection refused"), want: Unchanged},
		"the watch calls for a sandbox that runs":      {by: Watch, now: "true", want: Unchanged},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.pods.pod.Annotations[intent.KeyInitialize] = "false"
			b.pods.current, b.pods.errNow = askingPod(), c.err
			b.pods.current.Annotations[intent.KeyInitialize] = c.now
			s := b.sandbox
			s.ID, s.NetNS = "sandbox-1", "/netns/1"
			got, err := b.Ensure(t.Context(), c.by, s)
			if got != c.want || (got == Failed) != (err != nil) {
				t.Errorf("result %s, error %v", got, err)
			}
			if rules := b.backend.rules("/netns/1") != ""; rules != c.rules {
				t.Errorf("it has rules: %t", rules)
			}
			if c.want != Unchanged {
				return
			}
			b.pods.errNow = errors.New("asked again")
			if got, err := b.Ensure(t.Context(), c.by, s); got != Unchanged || err != nil {
				t.Errorf("the same sandbox once more: result %s, error %v", got, err)
			}
			s.ID, s.NetNS = "sandbox-2", "/netns/2"
			if _, err := b.Ensure(t.Context(), c.by, s); c.by.early() != errors.Is(err, b.pods.errNow) {
				t.Errorf("its next sandbox: error %v", err)
			}
		})
	}
}

// One request a sandbox: neither the removal nor the sandbox's containers ask once more. The watch and checks ask only before they
// remove rules.
func TestASandboxOfAPodThatOptsOutIsAskedAboutOnce(t *testing.T) {
	b := newBench(t)
	b.backend.held["/netns/1"] = "an earlier agent's"
	b.pods.pod.Annotations[intent.KeyInitialize] = "false"
	for call, c := range []struct {
		by   Hook
		want int32
	}{{NRI, 1}, {NRI, 1}, {CNI, 1}, {Verify, 1}, {Watch, 1}} {
		if _, err := b.Ensure(t.Context(), c.by, b.known()); err != nil || b.pods.asked.Load() != c.want {
			t.Errorf("call %d: %d requests, error %v", call, b.pods.asked.Load(), err)
		}
	}
	if b.backend.rules("/netns/1") != "" {
		t.Error("the rules stay")
	}
}

// Pods that get no rules for other reasons wait for no request: the API server may be away.
func TestAPodThatDoesNotOptOutIsNotAskedAbout(t *testing.T) {
	for name, change := range map[string]func(b *bench){
		"it does not ask":             func(b *bench) { delete(b.pods.pod.Annotations, intent.KeyInitialize) },
		"it asks":                     func(*bench) {},
		"it is on the host's network": func(b *bench) { b.pods.pod.Spec.HostNetwork = true },
		"its namespace is excluded": func(b *bench) {
			b.pods.pod.Annotations[intent.KeyInitialize] = "false"
			b.Config.ExcludedNamespaces = []string{"shop"}
		},
		"its namespace is the agent's": func(b *bench) {
			b.pods.pod.Annotations[intent.KeyInitialize] = "false"
			b.Config.AgentNamespace = "shop"
		},
	} {
		for _, by := range []Hook{NRI, CNI} {
			b := newBench(t)
			change(b)
			b.pods.errNow = errors.New("connection refused")
			if result, err := b.Ensure(t.Context(), by, b.known()); err != nil || b.pods.asked.Load() != 0 {
				t.Errorf("%s, %s: result %s, %d requests, error %v", name, by, result, b.pods.asked.Load(), err)
			}
		}
	}
}

// After an outage a namespace may be behind for some seconds. A new pod of one that asks by now must not start without rules, and one that could
// not have any must not wait for an API server that is away.
func TestEnsure_namespaceAsksByNow_isReadFromTheServerWhileTheCacheIsBehind(t *testing.T) {
	for name, c := range map[string]struct {
		by     Hook
		behind bool
		change func(b *bench)
		want   Result
		asked  int32
	}{
		"the cache is behind":      {by: NRI, behind: true, want: Changed, asked: 1},
		"for CNI":                  {by: CNI, behind: true, want: Changed, asked: 1},
		"the cache is up to date":  {by: NRI, want: Skipped},
		"the watch follows":        {by: Watch, behind: true, want: Skipped},
		"the pod has no proxy":     {by: NRI, behind: true, change: func(b *bench) { b.pods.pod.Spec.Containers = nil }, want: Skipped},
		"the API server is away":   {by: NRI, behind: true, change: func(b *bench) { b.pods.errNow = errors.New("connection refused") }, want: Skipped, asked: 1},
		"it does not ask even now": {by: NRI, behind: true, change: func(b *bench) { b.pods.currentNS = nil }, want: Skipped, asked: 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.pods.pod.Annotations = nil
			b.pods.pod.Spec.Containers = []corev1.Container{{Name: intent.ProxyContainer}}
			b.pods.currentNS = b.pods.ns.DeepCopy()
			b.pods.currentNS.Annotations = map[string]string{intent.KeyInitialize: "true"}
			b.Contact = &outage.Contact{}
			if c.behind {
				b.Contact.Note(t.Context(), "namespaces", syscall.ECONNREFUSED)
			}
			if c.change != nil {
				c.change(b)
			}
			if got, err := b.Ensure(t.Context(), c.by, b.known()); got != c.want || err != nil || b.pods.asked.Load() != c.asked {
				t.Errorf("result %s after %d questions, error %v", got, b.pods.asked.Load(), err)
			}
		})
	}
}

// What the API server does not answer is no fault of the kernel's.
func TestEnsure_serverDoesNotSayWhetherAPodOptsOut_isItsFailure(t *testing.T) {
	b := newBench(t)
	b.ensure(t, Changed)
	b.pods.pod.Annotations[intent.KeyInitialize] = "false"
	b.pods.errNow = context.DeadlineExceeded
	if _, err := b.Ensure(t.Context(), Watch, b.sandbox); reasonOf(err) != reasonAPI {
		t.Errorf("reason %q, error %v", reasonOf(err), err)
	}
}

// The kubelet may have reported a pod as failed that starts again now.
func TestAPodThatIsInAgainAndStartsHasNotFinished(t *testing.T) {
	b := newBench(t)
	b.pods.pod.Annotations[intent.KeyInitialize] = "false"
	b.pods.current = askingPod()
	b.pods.current.Status.Phase = corev1.PodFailed
	if result, err := b.Ensure(t.Context(), NRI, b.known()); result != Changed || err != nil {
		t.Errorf("result %s, error %v", result, err)
	}
}

// An API server that hangs has the pod refused at the end of the call's time, and what it wants tried again.
func TestAnAPIServerThatHangsRefusesInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.pods.pod.Annotations[intent.KeyInitialize] = "false"
		b.Pods = hangingPods{b.pods}
		ctx, cancel := context.WithTimeout(t.Context(), 1400*time.Millisecond)
		defer cancel()
		start := time.Now()
		result, err := b.Ensure(ctx, NRI, b.known())
		if took := time.Since(start); result != Failed || !errors.Is(err, context.DeadlineExceeded) || took != 1400*time.Millisecond {
			t.Errorf("after %s: result %s, error %v", took, result, err)
		}
		if e, _ := b.Ledger.Of("uid-1"); !e.Retry || len(b.reporter.reports) != 0 {
			t.Errorf("remembered %+v, reports %+v", e, b.reporter.reports)
		}
	})
}

// hangingPods are pods of an API server that answers nobody.
type hangingPods struct{ *fakePods }

func (hangingPods) Current(ctx context.Context, _ podnet.Sandbox) (*corev1.Pod, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}
