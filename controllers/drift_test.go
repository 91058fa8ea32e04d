package controllers

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/podreport"
	"istio-pod-network-controller/iptables"
)

var lost = iptables.Drift{
	{Kind: iptables.KindRules, Text: "- ip daddr 10.0.0.0/8 return"}, {Kind: iptables.KindRoute, Text: "- local default dev lo table 15006"},
}

func TestARepairIsReportedOnce(t *testing.T) {
	runDrifting(t, func(t *testing.T, d *drifting) {
		patches := d.api.patches
		d.told("")
		d.somebody(lost)
		for d.applied() == 0 {
			d.wait(10 * time.Millisecond)
		}
		d.somebody(nil)
		d.wait(5 * time.Minute)
		n, all := d.told(podreport.ReasonRulesRepaired)
		if n != 1 || len(all) != 1 {
			t.Fatalf("events %q", all)
		}
		for _, word := range []string{"repaired", "routes", "rules", "- ip daddr 10.0.0.0/8 return", "- local default dev lo"} {
			if !strings.Contains(all[0], word) {
				t.Errorf("event %q does not say %q", all[0], word)
			}
		}
		condition, said := d.api.says(t)
		if condition != "True Initialized" || said.LastRepair.Kinds != "route, rules" || said.LastRepair.Time == "" || d.api.patches != patches+1 {
			t.Errorf("condition %s, details %+v, %d patches", condition, said, d.api.patches-patches)
		}
		for _, kind := range []iptables.Kind{iptables.KindRules, iptables.KindRoute} {
			if n := testutil.ToFloat64(d.Metrics.drift.WithLabelValues(string(kind))); n != 1 {
				t.Errorf("drift_total{kind=%q} %v", kind, n)
			}
		}
	})
}

// A repair counts also if a step after it fails.
func TestARepairIsReportedWhateverFailsAfterIt(t *testing.T) {
	runDrifting(t, func(t *testing.T, d *drifting) {
		d.told("")
		d.somebody(lost)
		d.backend.mu.Lock()
		d.backend.errLate = errors.New("out of order")
		d.backend.mu.Unlock()
		d.wait(5 * time.Minute)
		if n, all := d.told(podreport.ReasonRulesRepaired); n != 1 {
			t.Errorf("events %q", all)
		}
		condition, said := d.api.says(t)
		if condition != "True Initialized" || said.LastRepair.Kinds != "route, rules" {
			t.Errorf("condition %s, details %+v", condition, said)
		}
	})
}

// Rules under constant foreign rewriting are repaired about once a minute, however often hooks call.
func TestRewritingIsMetWithBackOff(t *testing.T) {
	for name, c := range map[string]struct {
		call                     func(t *testing.T, d *drifting)
		applies, patches, events int // at most, in 10 minutes
	}{
		"no other call": {call: func(*testing.T, *drifting) {}, applies: 16, patches: 16, events: 18},
		"the pod's owner edits it ten times a second": {
			call: func(t *testing.T, d *drifting) {
				t.Helper()
				for range 10 {
					d.wait(100 * time.Millisecond)
					_, _ = d.Ensure(t.Context(), Watch, d.sandbox)
				}
			}, applies: 16, patches: 16, events: 18,
		},
		"its container is started once a second": {
			call: func(t *testing.T, d *drifting) {
				t.Helper()
				d.wait(time.Second)
				_, _ = d.Ensure(t.Context(), NRI, d.known())
			}, applies: 620, patches: 24, events: 620,
		},
	} {
		t.Run(name, func(t *testing.T) {
			runDrifting(t, func(t *testing.T, d *drifting) {
				patches := d.api.patches
				d.somebody(lost)
				d.told("")
				for start := time.Now(); time.Since(start) < 10*time.Minute; d.wait(time.Millisecond) {
					c.call(t, d)
				}
				patches = d.api.patches - patches
				contended, all := d.told(podreport.ReasonRulesContended)
				if d.applied() < 12 || d.applied() > c.applies || patches > c.patches || len(all) > c.events || contended != 1 {
					t.Errorf("in 10 minutes: Apply called %d times, %d patches, %d events, %d of them say contended", d.applied(), patches, len(all), contended)
				}
				checkContended(t, d)
				d.somebody(nil)
				d.wait(4 * time.Minute)
				checkCalm(t, d)
			})
		})
	}
}

func checkContended(t *testing.T, d *drifting) {
	t.Helper()
	if condition, said := d.api.says(t); condition != "False Contended" || said.LastRepair.Kinds != "route, rules" {
		t.Errorf("condition %s, details %+v", condition, said)
	}
	checkGauges(t, d, 1, 0)
}

// checkCalm wants the pod to be True again, and to be checked as usual.
func checkCalm(t *testing.T, d *drifting) {
	t.Helper()
	if condition, said := d.api.says(t); condition != "True Initialized" || said.LastRepair.Kinds == "" {
		t.Errorf("condition %s, details %+v", condition, said)
	}
	checkGauges(t, d, 0, 0)
	d.somebody(nil)
	d.wait(time.Minute)
	if n := d.applied(); n < 5 || n > 7 {
		t.Errorf("%d checks in a minute", n)
	}
}

func checkGauges(t *testing.T, d *drifting, contended, preempted float64) {
	t.Helper()
	wantGauge(t, d.bench, "contended_pods", contended)
	wantGauge(t, d.bench, "preempted_pods", preempted)
}

// wantGauge wants a metric without labels to have a value.
func wantGauge(t *testing.T, b *bench, name string, want float64) {
	t.Helper()
	families, err := b.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == MetricPrefix+name {
			if got := f.GetMetric()[0].GetGauge().GetValue(); got != want {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
			return
		}
	}
	t.Fatalf("no metric %s", name)
}

// Rules of others that decide first are reported while they are there, and once.
func TestPreemptionIsReportedWhileItLasts(t *testing.T) {
	runDrifting(t, func(t *testing.T, d *drifting) {
		patches := d.api.patches
		d.told("")
		preempt := func(lines ...string) {
			d.backend.mu.Lock()
			defer d.backend.mu.Unlock()
			d.backend.preempted = lines
		}
		preempt("table ip nat, chain PREROUTING, priority -200: tcp dport 80 redirect to :9")
		d.wait(5 * time.Minute)
		n, all := d.told(podreport.ReasonRulesPreempted)
		if condition, _ := d.api.says(t); condition != "False Preempted" || n != 1 || len(all) != 1 || !strings.Contains(all[0], "dport 80 redirect") || d.api.patches != patches+1 {
			t.Errorf("condition %s, events %q, %d patches", condition, all, d.api.patches-patches)
		}
		checkGauges(t, d, 0, 1)
		preempt()
		d.wait(15 * time.Second)
		if condition, _ := d.api.says(t); condition != "True Initialized" || d.api.patches != patches+2 {
			t.Errorf("condition %s, %d patches", condition, d.api.patches-patches)
		}
		checkGauges(t, d, 0, 0)
	})
}

// What the agent itself changes is no drift.
func TestWhatIsNoDrift(t *testing.T) {
	ctx := t.Context()
	for name, change := range map[string]func(b *bench){
		"an edited annotation": func(b *bench) { b.pods.pod.Annotations["traffic.sidecar.istio.io/excludeOutboundPorts"] = "5432" },
		"a new sandbox": func(b *bench) {
			b.finder.sandboxes["uid-1"] = podnet.Sandbox{ID: "sandbox-2", NetNS: "/netns/2"}
		},
		"an agent that has just started": func(b *bench) { b.Ledger.ForgetPod("uid-1"); b.backend.held["/netns/1"] = "an older version's" },
		"a pod that opts in again": func(b *bench) {
			b.pods.pod.Annotations[intent.KeyInitialize] = "false"
			_, _ = b.Ensure(ctx, Watch, b.sandbox)
			b.pods.pod.Annotations[intent.KeyInitialize] = "true"
		},
		"another agent that takes over": func(b *bench) {
			b.backend.held["/netns/1"] = "the other agent's"
			b.pods.pod.Annotations[podreport.KeyStatus] = string(podreport.StatusInitialized)
			b.pods.pod.Annotations[podreport.KeyDetails] = `{"sandbox":"sandbox-1","specHash":"another"}`
		},
		"another agent that takes over with another backend": func(b *bench) {
			b.backend.held["/netns/1"] = "the other agent's"
			e, _ := b.Ledger.Of("uid-1")
			b.pods.pod.Annotations[podreport.KeyStatus] = string(podreport.StatusInitialized)
			b.pods.pod.Annotations[podreport.KeyDetails] = `{"sandbox":"sandbox-1","backend":"another","specHash":"` + e.compiled.hash + `"}`
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.ensure(t, Changed)
			change(b)
			b.ensure(t, Changed)
			if e, _ := b.Ledger.Of("uid-1"); len(b.reporter.events) > 0 || e.Findings.contention.active() || e.LastRepair != (podreport.Repair{}) {
				t.Errorf("events %q, findings %+v", b.reporter.events, e.Findings)
			}
		})
	}
}

// What a pod writes about another agent hides two repairs at most.
func TestAForgedTakeoverHidesLittle(t *testing.T) {
	b := newBench(t)
	b.ensure(t, Changed)
	b.pods.pod.Annotations[podreport.KeyStatus] = string(podreport.StatusInitialized)
	b.pods.pod.Annotations[podreport.KeyDetails] = `{"sandbox":"sandbox-1","specHash":"forged"}`
	for range 5 {
		b.backend.held["/netns/1"] = "spoilt"
		b.verify(t)
	}
	if len(b.reporter.events) != 3 {
		t.Errorf("events %q", b.reporter.events)
	}
}

// Rules that a pod keeps are watched like any others.
func TestDriftOfKeptRulesIsReported(t *testing.T) {
	for name, c := range map[string]struct {
		change func(b *bench)
		want   Report
	}{
		"the pod no longer asks": {func(b *bench) { delete(b.pods.pod.Annotations, intent.KeyInitialize) }, Report{Status: podreport.StatusInitialized, Reason: podreport.ReasonInitialized}},
		"a wrong annotation":     {func(b *bench) { b.pods.pod.Annotations[wrongKey] = "http" }, Report{Status: podreport.StatusInitialized, Reason: podreport.ReasonInitialized}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.ensure(t, Changed)
			b.says(t, b.lastReport(t))
			c.change(b)
			_, _ = b.Ensure(t.Context(), Watch, b.sandbox)
			b.backend.held["/netns/1"] = "spoilt"
			b.verify(t)
			got := b.lastReport(t)
			if len(b.reporter.events) != 1 || got.Status != c.want.Status || got.Reason != c.want.Reason || got.LastRepair.Kinds != "rules" {
				t.Errorf("events %q, report %+v", b.reporter.events, got)
			}
		})
	}
}

func TestARepairInWords(t *testing.T) {
	for want, drift := range map[string]iptables.Drift{
		"repaired routes, rules that were missing or changed (- was missing, + was there): - ip daddr 10.0.0.0/8 return; - local default dev lo table 15006": lost,
		"repaired all rules that were missing or changed (- was missing, + was there): - table inet x":                                                       {{Kind: iptables.KindAbsent, Text: "- table inet x"}},
		"removed rules of another backend (- was missing, + was there): + rules of the iptables backend":                                                     {{Kind: iptables.KindBackend, Text: "+ rules of the iptables backend"}},
		"repaired sets that were missing or changed, and removed rules of another backend (- was missing, + was there): - set s; + rules of b": {
			{Kind: iptables.KindSets, Text: "- set s"}, {Kind: iptables.KindBackend, Text: "+ rules of b"},
		},
	} {
		if got := repairText(drift); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
