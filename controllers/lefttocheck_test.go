package controllers

import (
	"testing"
	"testing/synctest"
	"time"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/podreport"
)

// A pod changes several times while it starts. Each change reaches the kernel only if the rules may depend on it.
func TestEnsure_changeThatNeedsNoOtherRules_isLeftToTheNextCheck(t *testing.T) {
	for name, c := range map[string]struct {
		by     Hook
		change func(*bench)
		looks  bool
	}{
		"nothing that matters":           {by: Watch, change: func(*bench) {}},
		"rules that others have changed": {by: Watch, change: func(b *bench) { b.backend.held["/netns/1"] = "" }},
		"the pod wants other rules":      {by: Watch, change: func(b *bench) { b.pods.pod.Annotations["traffic.sidecar.istio.io/excludeOutboundPorts"] = "9000" }, looks: true},
		"a container starts":             {by: NRI, change: func(*bench) {}, looks: true},
		"it is a check":                  {by: Verify, change: func(*bench) {}, looks: true},
		"there are no checks":            {by: Watch, change: func(b *bench) { b.VerifyInterval = 0 }, looks: true},
		"checks are rare":                {by: Watch, change: func(b *bench) { b.VerifyInterval = time.Minute }, looks: true},
		"the last call has failed":       {by: Watch, change: func(b *bench) { b.Ledger.Mark(b.sandbox, "", true) }, looks: true},
		"its annotations were wrong":     {by: Watch, change: func(b *bench) { b.Ledger.Mark(b.sandbox, FailedPod, false) }, looks: true},
		"another agent has reported rules": {by: Watch, change: func(b *bench) {
			b.pods.pod.Annotations[podreport.KeyStatus] = string(podreport.StatusInitialized)
			b.pods.pod.Annotations[podreport.KeyDetails] = `{"sandbox":"sandbox-1","backend":"fake","specHash":"another"}`
		}, looks: true},
		"there is another sandbox":     {by: Watch, change: func(b *bench) { b.finder.sandboxes["uid-1"] = podnet.Sandbox{ID: "2", NetNS: "/netns/2"} }, looks: true},
		"the sandbox has another path": {by: Watch, change: func(b *bench) { b.finder.sandboxes["uid-1"] = podnet.Sandbox{ID: "sandbox-1", NetNS: "/n"} }, looks: true},
		"others' rules were before ours": {by: Watch, change: func(b *bench) {
			b.Ledger.found(podnet.Sandbox{ID: "sandbox-1", UID: "uid-1"}, Findings{Preempted: "a chain"})
		}, looks: true},
		"the rules were repaired of late": {by: Watch, change: func(b *bench) {
			b.Ledger.found(podnet.Sandbox{ID: "sandbox-1", UID: "uid-1"}, Findings{contention: contention{}.withRepair(time.Unix(1, 0))})
		}, looks: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.VerifyInterval = 10 * time.Second
			b.ensure(t, Changed)
			proxies := &fakeProxies{followed: []string{"sandbox-1"}}
			before := len(b.reporter.reports)
			c.change(b)
			b.Proxies = proxies
			if _, err := b.Ensure(t.Context(), c.by, b.sandbox); err != nil {
				t.Fatal(err)
			}
			if looks := b.backend.applies == 2; looks != c.looks {
				t.Errorf("it looks at the kernel: %t", looks)
			}
			if len(b.reporter.reports) == before {
				t.Error("there is no report: somebody may have edited the pod's annotations")
			}
			if len(proxies.followed) != 2 {
				t.Errorf("its proxy was followed %d times", len(proxies.followed)-1)
			}
		})
	}
}

// What a check is about to find must not be reported over by what was known before.
func TestAChangeDuringACheckIsReportedAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.VerifyInterval = 10 * time.Second
		b.ensure(t, Changed)
		before, release := len(b.reporter.reports), make(chan struct{})
		b.backend.during = func() { <-release }
		b.backend.preempted = []string{"a chain"}
		go b.verify(t)
		synctest.Wait() // the check is at work
		go func() { _, _ = b.Ensure(t.Context(), Watch, b.sandbox) }()
		synctest.Wait()
		if len(b.reporter.reports) != before {
			t.Errorf("reported meanwhile: %+v", b.lastReport(t))
		}
		close(release)
		synctest.Wait()
		if got := b.lastReport(t); got.Reason != podreport.ReasonPreempted {
			t.Errorf("reported at last: %+v", got)
		}
	})
}

func TestAChangeThatIsLeftKeepsWhatWasFound(t *testing.T) {
	b := newBench(t)
	b.VerifyInterval = 10 * time.Second
	b.ensure(t, Changed)
	want := Findings{LastRepair: podreport.Repair{Time: "2026-01-02T03:04:05Z", Kinds: "route"}, handovers: 1}
	b.Ledger.found(podnet.Sandbox{ID: "sandbox-1", UID: "uid-1"}, want)
	b.ensure(t, Unchanged)
	if e, _ := b.Ledger.Of("uid-1"); e.Findings != want || b.lastReport(t).LastRepair != want.LastRepair || b.backend.applies != 1 {
		t.Errorf("remembered %+v, reported %+v", e.Findings, b.lastReport(t))
	}
}
