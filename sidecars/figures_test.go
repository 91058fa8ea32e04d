package sidecars

import (
	"maps"
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
	out := figuresOf(nil, false).Pods
	maps.Copy(out, some)
	return out
}

// mustFigure wants figures of the profile edge: of Starts the number alone.
func mustFigure(t *testing.T, m *Manager, when string, want Figures) {
	t.Helper()
	got := m.Figures()["edge"]
	got.Starts = Durations{Count: got.Starts.Count}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", when, diff)
	}
}

// The figures follow a profile's proxies: they start, crash, fail, are upgraded, and go.
func TestFigures_lifeOfAProxy_isCounted(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		defer stop()
		m.Follow(sandboxOf("u1"))
		mustFigure(t, m, "before the first step", Figures{})
		after(100 * time.Millisecond)
		mustFigure(t, m, "it starts", Figures{Pods: pods(map[Health]int{HealthStarting: 1})})
		after(time.Second)
		mustFigure(t, m, "it is ready", Figures{Pods: pods(map[Health]int{HealthReady: 1}), Starts: Durations{Count: 1}})
		if took := m.Figures()["edge"].Starts; took.Sum < 200*time.Millisecond || took.Sum > time.Second || took.Within[shortestStart] != 0 || took.Within[2*time.Second] != 1 {
			t.Errorf("the start took %v", took)
		}
		n.end("c001", 1)
		after(5 * time.Second)
		mustFigure(t, m, "another one has come", Figures{Pods: pods(map[Health]int{HealthReady: 1}), Restarts: 1, Starts: Durations{Count: 1}})

		after(2 * calmTime)
		n.change(func() {
			n.profile.Spec.Image = "localhost/haproxy:2"
			n.profile.Generation++
			n.behave = func(p *fakeProxy) { p.readyAfter = -1 }
		})
		m.Notify("edge")
		after(11 * time.Second)
		mustFigure(t, m, "the new version was not ready in time", Figures{
			Pods: pods(map[Health]int{HealthReady: 1}), Paused: true, Restarts: 1, Failed: 1, Starts: Durations{Count: 1},
		})
		n.change(func() { n.behave = func(p *fakeProxy) { p.readyAfter = 0 } })
		after(time.Minute)
		got := m.Figures()["edge"]
		if got.Upgraded != 1 || got.Paused || got.Pods[HealthReady] != 1 || got.Restarts != 1 {
			t.Errorf("it was tried again: %+v", got)
		}
		m.Unfollow("u1")
		if left := m.Figures(); len(left) != 0 {
			t.Errorf("left of a pod that is gone: %+v", left)
		}
	})
}

// A crash loop is failed, also while the next proxy starts.
func TestFigures_crashLoop_isFailed(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.behave = func(p *fakeProxy) { p.readyAfter, p.exit = -1, 3 }
		m, stop := agent()
		defer stop()
		m.Follow(sandboxOf("u1"))
		after(time.Second)
		for range 20 {
			after(700 * time.Millisecond)
			if got := m.Figures()["edge"]; got.Pods[HealthFailed] != 1 || got.Restarts == 0 || got.Failed != 0 || got.Starts.Count != 0 {
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
		after(time.Second)
		stop()
		m, stop = agent()
		defer stop()
		m.Follow(sandboxOf("u1"))
		after(time.Second)
		mustFigure(t, m, "the next agent", Figures{Pods: pods(map[Health]int{HealthReady: 1})})
		n.change(func() { n.refusal = "there is no such profile" })
		m.Follow(sandboxOf("u2"))
		after(time.Second)
		if got := m.Figures()["edge"]; got.Pods[HealthRefused] != 1 || len(m.counted) != 0 {
			t.Errorf("%+v, %d profiles are remembered", got, len(m.counted))
		}
	})
}
