package sidecars

import (
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"istio-pod-network-controller/api/v1alpha1"
)

func TestHealthOf_status_isWhatThePodHas(t *testing.T) {
	for name, c := range map[string]struct {
		in   Status
		want Health
	}{
		"ready":                               {Status{State: v1alpha1.Running, Ready: true}, HealthReady},
		"ready after a failure":               {Status{State: v1alpha1.Running, Ready: true, Failure: "it ended"}, HealthReady},
		"an old one serves, a new one starts": {Status{State: v1alpha1.Upgrading, Ready: true}, HealthReady},
		"it does not answer":                  {Status{State: v1alpha1.Running}, HealthSilent},
		"the old one does not answer":         {Status{State: v1alpha1.Upgrading}, HealthSilent},
		"the first one starts":                {Status{State: v1alpha1.Starting}, HealthStarting},
		"its image is pulled":                 {Status{State: v1alpha1.Pulling}, HealthStarting},
		"it failed":                           {Status{State: v1alpha1.Failed, Failure: "it ended"}, HealthFailed},
		"it failed and starts again":          {Status{State: v1alpha1.Starting, Failure: "it ended"}, HealthFailed},
		"there is no such profile":            {Status{State: v1alpha1.Refused}, HealthRefused},
		"the pod has finished":                {Status{State: v1alpha1.Ended}, HealthEnded},
	} {
		if got := healthOf(c.in); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// pods returns counts of pods by health, with the zeros.
func pods(some map[Health]int) map[Health]int {
	out := map[Health]int{HealthReady: 0, HealthStarting: 0, HealthSilent: 0, HealthFailed: 0, HealthRefused: 0, HealthEnded: 0}
	maps.Copy(out, some)
	return out
}

// startTimes collects the starts that a Manager reports.
func startTimes(m *Manager) func() []time.Duration {
	var mu sync.Mutex
	told := []time.Duration{}
	m.Started = func(_ string, took time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, took)
	}
	return func() []time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(told)
	}
}

// mustFigure wants figures of the profile edge.
func mustFigure(t *testing.T, m *Manager, when string, want Figures) {
	t.Helper()
	if diff := cmp.Diff(want, m.Figures()["edge"]); diff != "" {
		t.Errorf("%s (-want +got):\n%s", when, diff)
	}
}

// The figures follow a profile's proxies: they start, crash, fail, are upgraded, and go.
func TestFigures_lifeOfAProxy_isCounted(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		defer stop()
		started := startTimes(m)
		m.Follow(sandboxOf("u1"))
		mustFigure(t, m, "before the first step", Figures{})
		n.after(100 * time.Millisecond)
		mustFigure(t, m, "it starts", Figures{Pods: pods(map[Health]int{HealthStarting: 1})})
		n.after(time.Second)
		mustFigure(t, m, "it is ready", Figures{Pods: pods(map[Health]int{HealthReady: 1})})
		if took := started(); len(took) != 1 || took[0] < 200*time.Millisecond || took[0] > time.Second {
			t.Errorf("the start took %v", took)
		}
		n.end("c001", 1)
		n.after(5 * time.Second)
		mustFigure(t, m, "another one has come", Figures{Pods: pods(map[Health]int{HealthReady: 1}), Restarts: 1})

		n.after(2 * stableTime)
		n.change(func() {
			n.profile.Spec.Image = "localhost/haproxy:2"
			n.profile.Generation++
			n.behave = func(p *fakeProxy) { p.readyAfter = -1 }
		})
		m.Notify("edge")
		n.after(11 * time.Second)
		mustFigure(t, m, "the new version was not ready in time", Figures{
			Pods: pods(map[Health]int{HealthReady: 1}), Paused: true, Restarts: 1, Failed: 1,
		})
		n.change(func() { n.behave = func(p *fakeProxy) { p.readyAfter = 0 } })
		n.after(time.Minute)
		got := m.Figures()["edge"]
		if got.Upgraded != 1 || got.Paused || got.Pods[HealthReady] != 1 || got.Restarts != 1 {
			t.Errorf("it was tried again: %+v", got)
		}
		m.Unfollow("u1")
		if left := m.Figures(); len(left) != 0 || len(started()) != 1 {
			t.Errorf("left of a pod that is gone: %+v; starts took %v", left, started())
		}
	})
}

// A crash loop is failed, also while the next proxy starts.
func TestFigures_crashLoop_isFailed(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.behave = func(p *fakeProxy) { p.readyAfter, p.exit = -1, 3 }
		m, stop := agent()
		defer stop()
		started := startTimes(m)
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		for range 20 {
			n.after(700 * time.Millisecond)
			if got := m.Figures()["edge"]; got.Pods[HealthFailed] != 1 || got.Restarts == 0 || got.Failed != 0 || len(started()) > 0 {
				t.Fatalf("%+v", got)
			}
		}
	})
}

// An agent that starts finds proxies that run already: none of them has just started. A name without a profile has no figures but its pods.
func TestFigures_newAgentAndUnknownProfile_countNoStarts(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		stop()
		m, stop = agent()
		defer stop()
		started := startTimes(m)
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		mustFigure(t, m, "the next agent", Figures{Pods: pods(map[Health]int{HealthReady: 1})})
		n.change(func() { n.refusal = "there is no such profile" })
		m.Follow(sandboxOf("u2"))
		n.after(time.Second)
		if got := m.Figures()["edge"]; got.Pods[HealthRefused] != 1 || len(m.counts.by) != 0 || len(started()) > 0 {
			t.Errorf("%+v, %d profiles are remembered, starts took %v", got, len(m.counts.by), started())
		}
	})
}
