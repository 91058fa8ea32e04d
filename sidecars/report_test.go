package sidecars

import (
	"errors"
	"testing"
	"time"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/home"
	"istio-pod-network-controller/sidecars/plan"
	"istio-pod-network-controller/sidecars/probe"
	"istio-pod-network-controller/sidecars/profile"
)

// The ManagedProxy says what its pod's owner has to know first.
func TestStatus_messages_mostImportantFirst(t *testing.T) {
	for name, c := range map[string]struct {
		refusal, why, stale string
		silent              string
		want                string
	}{
		"it is well":                             {},
		"a start that failed":                    {why: "exit code 1", want: "earlier: exit code 1"},
		"a secret that is not renewed":           {stale: "no Secret", want: "no Secret"},
		"both":                                   {why: "exit code 1", stale: "no Secret", want: "earlier: exit code 1; no Secret"},
		"it does not answer, which matters more": {why: "exit code 1", stale: "no Secret", silent: "refused", want: "it does not answer: refused"},
		"the pod is refused, which matters even more": {refusal: "on the host's network", why: "exit code 1", silent: "refused", want: "on the host's network"},
	} {
		t.Run(name, func(t *testing.T) {
			o := observed{
				containers: []sidecar.Container{{ID: "c1", State: sidecar.Running}}, choice: Choice{Name: "edge", Refusal: c.refusal}, home: home.Home{Path: t.TempDir()},
				proxies: map[string]proxy{"c1": {probes: probe.Results{WasReady: true, ReadyNow: c.silent == "", Readiness: probe.Pulse{Why: c.silent}}}},
			}
			got := statusOf(o, memory{failures: failures{why: c.why}, stale: c.stale}, plan.Decision{Serving: "c1"}, false)
			if got.Message != c.want || got.Failure != c.why || got.Ready != (c.silent == "") {
				t.Errorf("%+v, want the message %q", got, c.want)
			}
		})
	}
}

// While no proxy serves, the ManagedProxy shows the newest one, in whatever order the runtime lists them.
func TestStatus_noneServes_showsNewest(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		defer stop()
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		n.change(func() {
			n.behave = func(p *fakeProxy) { p.readyAfter = -1 }
			n.failures["remove"] = errors.New("device or resource busy")
			n.profile.Spec.Image = "localhost/haproxy:2"
		})
		n.end("c001", 139)
		n.after(3 * time.Second)
		if said := n.mustSay(t, "u1", v1alpha1.Starting, false); said.Epoch != 1 || said.Image != "localhost/haproxy:2" {
			t.Errorf("the ManagedProxy says %+v", said)
		}
	})
}

// The pause after failures in a row doubles, up to ten seconds. Without one there is none.
func TestRetryAt_failuresInARow_pauseDoubles(t *testing.T) {
	m := memory{}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	if !m.failures.retryAt().Before(now) {
		t.Errorf("before the first start: %s", m.failures.retryAt())
	}
	for _, want := range []time.Duration{50, 100, 200, 400, 800, 1600, 3200, 6400, 10000, 10000} {
		m = m.afterFailure(now, "exit code 1", nil)
		if got := m.failures.retryAt().Sub(now); got != want*time.Millisecond {
			t.Errorf("after %d failures: %s, want %d ms", m.failures.inARow, got, want)
		}
	}
}

// What a proxy is called that does not serve.
func TestState_noneServes_saysWhy(t *testing.T) {
	start := plan.Decision{Actions: []plan.Action{{Verb: plan.Start}}}
	for name, c := range map[string]struct {
		choice   Choice
		decision plan.Decision
		pulling  bool
		failures int
		want     v1alpha1.State
	}{
		"it is refused":                           {choice: Choice{Name: "edge", Refusal: "it is on the host's network"}, want: v1alpha1.Refused},
		"its image is pulled":                     {decision: start, pulling: true, want: v1alpha1.Pulling},
		"its first start":                         {decision: start, want: v1alpha1.Starting},
		"a start after a failure":                 {decision: start, failures: 1, want: v1alpha1.Failed},
		"a start after a failure, which may last": {decision: plan.Decision{Awaited: []string{"c1"}}, failures: 1, want: v1alpha1.Starting},
		"it waits for the next start":             {failures: 1, want: v1alpha1.Failed},
		"the pod has finished":                    {choice: Choice{Finished: true}, want: v1alpha1.Ended},
	} {
		t.Run(name, func(t *testing.T) {
			if c.choice.Refusal == "" {
				c.choice.Profile = &profile.Version{}
			}
			if got := stateOf(observed{choice: c.choice}, c.decision, c.failures > 0, c.pulling); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}
