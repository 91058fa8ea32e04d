package node

import (
	"context"
	"testing"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/sidecars"
)

// While a pod moves, both managers speak of it: the Sidecar shows what it has chosen, and the rules follow whichever is ready.
func TestTheSidecarShowsWhatAPodHasChosen(t *testing.T) {
	r := newSidecarReports(nil, nil, "node-1")
	own, shared := ownReporter{r}, sharedReporter{r}
	s := theSandbox()
	shows := func(step, profile string) {
		t.Helper()
		report, known := r.reports[s.UID]
		if known != (profile != "") || report.status.Profile != profile || known && report.retract {
			t.Errorf("%s: shown is %+v, want %q", step, report.status, profile)
		}
	}
	r.choose(s.UID, choseOwn)
	own.Report(s, sidecars.Status{Profile: "edge", State: v1alpha1.Running, Ready: true, Serves: "edge"})
	shows("its own", "edge")
	r.choose(s.UID, choseShared)
	shared.Report(s, sidecars.Status{Profile: "shared", State: v1alpha1.Starting})
	own.Report(s, sidecars.Status{Profile: "edge", State: v1alpha1.Failed})
	shows("the shared one is not ready", "shared")
	if ready, known := r.ownReady(s); ready || !known || r.ownServes(s, "edge") {
		t.Errorf("its own is ready %v, known %v", ready, known)
	}
	own.Report(s, sidecars.Status{Ready: true, Serves: "edge"})
	if !r.ownServes(s, "edge") || r.ownServes(s, "other") || r.ownServes(podnet.Sandbox{UID: s.UID, ID: "s2"}, "edge") {
		t.Error("its own serves, or not, or another sandbox")
	}
	own.Retract(s.UID) // it has drained
	shared.Forget(s.UID)
	shows("its own has ended", "shared")
	if _, known := r.ownReady(s); known {
		t.Error("its own is still known")
	}
	r.choose(s.UID, choseOwn)
	own.Report(s, sidecars.Status{Profile: "edge", State: v1alpha1.Starting})
	shared.Retract(s.UID)
	shows("back", "edge")
	r.choose(s.UID, choseShared)
	shared.Report(s, sidecars.Status{Profile: "shared", State: v1alpha1.Running, Ready: true})
	r.choose(s.UID, choseNone)
	shared.Retract(s.UID)
	if !r.reports[s.UID].retract {
		t.Error("the Sidecar of a pod that has opted out stays")
	}
}

// Each change that rules may have to follow is passed on once, also one of a proxy that the Sidecar does not show.
func TestRulesFollowEachProxyOfAMovingPod(t *testing.T) {
	r := newSidecarReports(nil, nil, "node-1")
	own, shared := ownReporter{r}, sharedReporter{r}
	s := theSandbox()
	r.choose(s.UID, choseShared)
	for i, report := range []func(){
		func() { own.Report(s, sidecars.Status{Ready: true, Serves: "edge"}) },
		func() { own.Report(s, sidecars.Status{}) },
		func() { own.Report(s, sidecars.Status{Ready: true, Serves: "edge"}) },
		func() { shared.Report(s, sidecars.Status{Profile: "shared", Ready: true}) },
		func() { shared.Report(s, sidecars.Status{Profile: "shared-2", Ready: true}) },
	} {
		report()
		r.mu.Lock()
		known, found := r.reports[s.UID]
		_, first := r.tell(s.UID, known, found)
		_, again := r.tell(s.UID, known, found)
		r.mu.Unlock()
		if !first || again {
			t.Errorf("change %d: passed on %v, and again %v", i, first, again)
		}
	}
}

// Which of the two managers speaks for a pod follows its choice. What a pod without one had is taken back by whichever has shown it.
func TestWhoSpeaksForAPodFollowsItsChoice(t *testing.T) {
	m := newMoving(t)
	for _, c := range []struct {
		profile string
		want    chosenKind
	}{{"edge", choseOwn}, {"shared", choseShared}, {"egde", choseOwn}, {"", choseNone}} {
		m.choose(c.profile)
		m.visit()
		if got := m.reports.chose(m.sandbox.UID); got != c.want {
			t.Errorf("%q: kind %d, want %d", c.profile, got, c.want)
		}
	}
}

// The rules of a pod that has chosen a shared proxy may still lead to its own: they follow that one although its Sidecar shows the other.
func TestRulesFollowAProxyThatIsNotShown(t *testing.T) {
	r := newSidecarReports(nil, nil, "node-1")
	var told []string
	r.changed = func(_ context.Context, s podnet.Sandbox) { told = append(told, s.ID) }
	s, next := theSandbox(), theSandbox()
	next.ID = "s2"
	r.choose(s.UID, choseShared)
	for i, c := range []struct {
		sandbox podnet.Sandbox
		status  sidecars.Status
		told    int
	}{
		{s, sidecars.Status{Ready: true, Serves: "edge"}, 1},
		{s, sidecars.Status{Ready: true, Serves: "edge"}, 1},
		{s, sidecars.Status{}, 2},
		{next, sidecars.Status{}, 2}, // of which nothing is known that the rules depend on
		{next, sidecars.Status{Ready: true, Serves: "edge"}, 3},
	} {
		ownReporter{r}.Report(c.sandbox, c.status)
		workOff(t, r)
		if len(told) != c.told || told[len(told)-1] != c.sandbox.ID && i != 3 {
			t.Errorf("report %d: passed on %q, want %d", i, told, c.told)
		}
	}
}

// What is remembered of a proxy is of one sandbox, and ends with the pod.
func TestNothingIsKeptOfAPodThatIsGone(t *testing.T) {
	r := newSidecarReports(nil, nil, "node-1")
	r.changed = func(context.Context, podnet.Sandbox) {}
	s, next := theSandbox(), theSandbox()
	next.ID = "s2"
	r.choose(s.UID, choseShared)
	ownReporter{r}.Report(s, sidecars.Status{Ready: true, Serves: "edge"})
	workOff(t, r)
	if _, known := r.ownReady(next); known || r.ownServes(next, "edge") || r.ownOffers(next, "edge") {
		t.Error("the next sandbox has the proxy of the one before")
	}
	r.leavesOwn(s.UID, true)
	if r.ownOffers(s, "edge") || !r.ownServes(s, "edge") {
		t.Error("a proxy that is about to finish is offered, or does not serve any more")
	}
	r.Forget(s.UID)
	if left := len(r.chosen.kinds) + len(r.chosen.own) + len(r.chosen.leaving) + len(r.told) + len(r.reports); left != 0 {
		t.Errorf("left are %+v, told %+v", r.chosen, r.told)
	}
	r.choose(s.UID, choseOwn)
	r.choose(s.UID, choseNone)
	ownReporter{r}.Report(s, sidecars.Status{})
	r.leavesOwn(s.UID, true)
	ownReporter{r}.Retract(s.UID) // its own proxy has ended, and the pod is still there
	if left := len(r.chosen.kinds) + len(r.chosen.own) + len(r.chosen.leaving); left != 0 {
		t.Errorf("left are %+v", r.chosen)
	}
}
