package controllers

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/podreport"
)

const wrongKey = "traffic.sidecar.istio.io/excludeOutboundPorts"

// verify checks every pod in the ledger once.
func (b *bench) verify(t *testing.T) {
	t.Helper()
	for _, e := range b.Ledger.Entries() {
		_, _ = b.Ensure(t.Context(), Verify, e.Sandbox)
	}
}

// verifyFor works on the queue for a while of a bubble's time.
func verifyFor(t *testing.T, b *bench, interval, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	b.VerifyInterval = interval
	b.work(ctx, t, newWorkWatch(b))
}

// Whichever hook failed, and however short the fault was, the pod is repaired soon, and its report says so.
func TestAFailureIsMendedWithoutAnybodyTelling(t *testing.T) {
	for name, c := range map[string]struct {
		by   Hook
		fail func(b *bench, fails bool)
	}{
		"the kernel, for NRI":        {by: NRI, fail: func(b *bench, fails bool) { b.backend.err = faultIf(fails) }},
		"the kernel, for CNI":        {by: CNI, fail: func(b *bench, fails bool) { b.backend.err = faultIf(fails) }},
		"the kernel, for a check":    {by: Verify, fail: func(b *bench, fails bool) { b.backend.err = faultIf(fails) }},
		"the look at the namespace":  {by: NRI, fail: func(b *bench, fails bool) { b.backend.errLook = faultIf(fails) }},
		"the runtime, for the watch": {by: Watch, fail: func(b *bench, fails bool) { b.finder.err = faultIf(fails) }},
		"the API server, for NRI":    {by: NRI, fail: func(b *bench, fails bool) { b.pods.err = faultIf(fails) }},
		"the namespace, for CNI":     {by: CNI, fail: func(b *bench, fails bool) { b.pods.errNS = faultIf(fails) }},
	} {
		for _, interval := range []time.Duration{0, time.Hour} {
			t.Run(name+" every "+interval.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newBench(t)
					s := b.sandbox
					if c.by != Watch {
						s.ID, s.NetNS = "sandbox-1", "/netns/1"
					}
					c.fail(b, true)
					if result, err := b.Ensure(t.Context(), c.by, s); result != Failed || err == nil {
						t.Fatalf("result %q, error %v", result, err)
					}
					verifyFor(t, b, interval, time.Minute)
					c.fail(b, false)
					verifyFor(t, b, interval, 30*time.Second)
					e, _ := b.Ledger.Of("uid-1")
					if b.backend.rules("/netns/1") == "" || b.lastReport(t).Status != podreport.StatusInitialized || e.State != Programmed || e.Retry {
						t.Errorf("rules %q, remembered %+v", b.backend.rules("/netns/1"), e)
					}
				})
			})
		}
	}
}

func faultIf(fails bool) error {
	if fails {
		return errors.New("out of order")
	}
	return nil
}

// The rules that a pod keeps are repaired whatever it says about new ones.
func TestKeptRulesAreRepaired(t *testing.T) {
	for name, change := range map[string]func(b *bench){
		"a wrong annotation":         func(b *bench) { b.pods.pod.Annotations[wrongKey] = "http" },
		"the pod no longer asks":     func(b *bench) { delete(b.pods.pod.Annotations, intent.KeyInitialize) },
		"a word that means nothing":  func(b *bench) { b.pods.pod.Annotations[intent.KeyInitialize] = "yes" },
		"nothing has changed at all": func(*bench) {},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.ensure(t, Changed)
			before := b.backend.rules("/netns/1")
			change(b)
			if _, err := b.Ensure(t.Context(), Watch, b.sandbox); err != nil && !RulesKept(err) {
				t.Errorf("the rules are not said to be kept: %v", err)
			}
			b.backend.held["/netns/1"] = "spoilt"
			for range 2 {
				b.verify(t)
			}
			if b.backend.rules("/netns/1") != before {
				t.Errorf("rules %q", b.backend.rules("/netns/1"))
			}
		})
	}
}

// A fault while kept rules are repaired is retried, though the pod's own mistake is not.
func TestARepairThatFailsIsRetried(t *testing.T) {
	b := newBench(t)
	b.ensure(t, Changed)
	b.pods.pod.Annotations[wrongKey] = "http"
	b.backend.err = errors.New("kernel says no")
	result, err := b.Ensure(t.Context(), Watch, b.sandbox)
	if e, _ := b.Ledger.Of("uid-1"); result != Failed || !Permanent(err) || RulesKept(err) || !e.Retry {
		t.Errorf("result %q, error %v, remembered %+v", result, err, e)
	}
	b.backend.err = nil
	if _, err := b.Ensure(t.Context(), Watch, b.sandbox); !RulesKept(err) {
		t.Errorf("error %v", err)
	}
	if e, _ := b.Ledger.Of("uid-1"); e.Retry || e.State != InvalidPod {
		t.Errorf("remembered %+v", e)
	}
}

// An agent that has just started does not know what rules a pod with a wrong annotation keeps, but sees that it does.
func TestRulesOfAnEarlierAgentAreKept(t *testing.T) {
	b := newBench(t)
	b.pods.pod.Annotations[wrongKey] = "http"
	b.backend.held["/netns/1"] = "an earlier agent's"
	s := b.sandbox
	s.ID, s.NetNS = "sandbox-1", "/netns/1"
	if _, err := b.Ensure(t.Context(), CNI, s); !RulesKept(err) || b.backend.rules("/netns/1") != "an earlier agent's" {
		t.Errorf("error %v, rules %q", err, b.backend.rules("/netns/1"))
	}
	clear(b.backend.held)
	if _, err := b.Ensure(t.Context(), CNI, s); RulesKept(err) || !Permanent(err) {
		t.Errorf("error %v", err)
	}
}

func TestASweepTakesTheNewestSandbox(t *testing.T) {
	b := newBench(t)
	b.ensure(t, Changed)
	old, _ := b.Ledger.Of("uid-1")
	b.finder.sandboxes["uid-1"] = podnet.Sandbox{ID: "sandbox-2", NetNS: "/netns/2"}
	b.ensure(t, Changed)
	if _, err := b.Ensure(t.Context(), Verify, old.Sandbox); err != nil {
		t.Fatal(err)
	}
	if e, _ := b.Ledger.Of("uid-1"); e.Sandbox.ID != "sandbox-2" {
		t.Errorf("remembered %+v", e)
	}
}

// The rules of a sandbox that was replaced are not those of the new one.
func TestRulesAreKeptInTheirSandboxOnly(t *testing.T) {
	b := newBench(t)
	b.ensure(t, Changed)
	b.pods.pod.Annotations[wrongKey] = "http"
	s := b.sandbox
	s.ID, s.NetNS = "sandbox-2", "/netns/2"
	if _, err := b.Ensure(t.Context(), NRI, s); !Permanent(err) || RulesKept(err) || b.backend.rules("/netns/2") != "" {
		t.Errorf("error %v, rules %q", err, b.backend.rules("/netns/2"))
	}
}

func TestAKeptSandboxThatIsGoneIsForgotten(t *testing.T) {
	b := newBench(t)
	b.ensure(t, Changed)
	b.pods.pod.Annotations[wrongKey] = "http"
	b.backend.identity["/netns/1"] = podnet.Identity{Ino: 2}
	if _, err := b.Ensure(t.Context(), Watch, b.sandbox); !Permanent(err) || RulesKept(err) {
		t.Errorf("error %v", err)
	}
	if e, ok := b.Ledger.Of("uid-1"); !ok || e.Sandbox.NetNS != "" || e.Retry {
		t.Errorf("remembered %+v", e)
	}
}
