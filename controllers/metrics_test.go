package controllers

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
)

// ensureTotal returns the whole metric: every series is there from the start, with 0 unless counts has "HOOK RESULT".
func ensureTotal(counts map[string]int) string {
	const name = MetricPrefix + "ensure_total"
	var b strings.Builder
	fmt.Fprintf(&b, "# HELP %s Calls that made a sandbox's rules what its pod asks for, by hook and result.\n# TYPE %s counter\n", name, name)
	for _, by := range []Hook{CNI, NRI, Verify, Watch} {
		for _, result := range []Result{Changed, Failed, Skipped, Unchanged} {
			fmt.Fprintf(&b, "%s{hook=%q,result=%q} %d\n", name, by, result, counts[string(by)+" "+string(result)])
		}
	}
	return b.String()
}

// A counter that appears with its first event shows no increase to rate().
func TestEverySeriesExistsFromTheStart(t *testing.T) {
	registry := prometheus.NewRegistry()
	if _, err := NewMetrics(registry, NewLedger()); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, f := range families {
		got[strings.TrimPrefix(f.GetName(), MetricPrefix)] = len(f.GetMetric())
		for _, m := range f.GetMetric() {
			if f.GetType().String() == "COUNTER" && m.GetCounter().GetValue() != 0 {
				t.Errorf("%s starts with %v", f.GetName(), m)
			}
		}
	}
	want := map[string]int{
		"ensure_total": 16, "ensure_duration_seconds": 4, "drift_total": len(iptables.Kinds()), "failures_total": 6,
		"pods": 5, "contended_pods": 1, "preempted_pods": 1, "held_pods": 1, "late_pods": 1, "no_listener_pods": 1,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
}

func TestFailuresAreCountedByReason(t *testing.T) {
	broken := errors.New("broken")
	for name, tc := range map[string]struct {
		arrange func(b *bench)
		want    failureReason
	}{
		"a wrong annotation":         {func(b *bench) { b.pods.pod.Annotations[intent.KeyInitialize] = "yes" }, reasonAnnotation},
		"a pod that cannot be read":  {func(b *bench) { b.pods.err = broken }, reasonAPI},
		"a runtime that fails":       {func(b *bench) { b.finder.err = broken }, reasonRuntime},
		"a kernel that refuses":      {func(b *bench) { b.backend.err = broken }, reasonKernel},
		"a kernel that is too slow":  {func(b *bench) { b.backend.err = os.ErrDeadlineExceeded }, reasonTimeout},
		"a runtime that is too slow": {func(b *bench) { b.finder.err = os.ErrDeadlineExceeded }, reasonRuntime},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			tc.arrange(b)
			result, err := b.Ensure(t.Context(), Watch, b.sandbox)
			if result != Failed {
				t.Fatalf("result %q, error %v", result, err)
			}
			for _, reason := range failureReasons() {
				want := map[bool]float64{true: 1}[reason == tc.want]
				if got := testutil.ToFloat64(b.Metrics.failures.WithLabelValues(string(reason))); got != want {
					t.Errorf("reason %s: %v, want %v (error %v)", reason, got, want, err)
				}
			}
		})
	}
}

// Rules that somebody has changed and that could not be repaired have a reason of their own.
func TestChangedRulesAreAReasonOfTheirOwn(t *testing.T) {
	b := newBench(t)
	b.ensure(t, Changed)
	b.backend.seen, b.backend.err = iptables.Drift{{Kind: iptables.KindRules, Text: "- a rule"}}, errors.New("busy")
	if result, err := b.Ensure(t.Context(), Watch, b.sandbox); result != Failed {
		t.Fatalf("result %q, error %v", result, err)
	}
	if n := testutil.ToFloat64(b.Metrics.failures.WithLabelValues(string(reasonChanged))); n != 1 {
		t.Errorf("failures with the reason %q: %v", reasonChanged, n)
	}
}

// A pod that is not there yet has not failed.
func TestAnAbsentSandboxIsNoFailure(t *testing.T) {
	b := newBench(t)
	b.finder.err = podnet.ErrNotReady
	if _, err := b.Ensure(t.Context(), Watch, b.sandbox); !errors.Is(err, podnet.ErrNotReady) {
		t.Fatal(err)
	}
	for _, reason := range failureReasons() {
		if n := testutil.ToFloat64(b.Metrics.failures.WithLabelValues(string(reason))); n != 0 {
			t.Errorf("reason %s: %v", reason, n)
		}
	}
}

// podsIn returns the metric of pods in a state.
func (b *bench) podsIn(t *testing.T, state State) float64 {
	t.Helper()
	families, err := b.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == MetricPrefix+"pods" && m.GetLabel()[0].GetValue() == string(state) {
				return m.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("there is no series for %s", state)
	return 0
}

// A pod whose sandboxes are refused, one after the other, is counted in between: until it is programmed, or gone.
func TestPodsMetric_refusedSandbox_isCountedUntilThePodIsWell(t *testing.T) {
	for state, harm := range map[State]func(*bench){
		FailedPod:  func(b *bench) { b.backend.err = errors.New("the kernel says no") },
		InvalidPod: func(b *bench) { b.pods.pod.Annotations[wrongKey] = "http" },
	} {
		t.Run(string(state), func(t *testing.T) {
			b := newBench(t)
			harm(b)
			for _, id := range []string{"sandbox-1", "sandbox-2"} {
				s := b.sandbox
				s.ID, s.NetNS = id, "/netns/1"
				if result, _ := b.Ensure(t.Context(), NRI, s); result != Failed {
					t.Fatalf("result %s", result)
				}
				b.Forget(id)
				b.finder.err = podnet.ErrNotReady
				_, _ = b.Ensure(t.Context(), Watch, b.sandbox)
				if n := b.podsIn(t, state); n != 1 {
					t.Errorf("after %s has gone: %v pods", id, n)
				}
			}
			b.backend.err, b.finder.err = nil, nil
			delete(b.pods.pod.Annotations, wrongKey)
			s := b.sandbox
			s.ID, s.NetNS = "sandbox-3", "/netns/1"
			if _, err := b.Ensure(t.Context(), NRI, s); err != nil || b.podsIn(t, state) != 0 || b.podsIn(t, Programmed) != 1 {
				t.Errorf("error %v; %v %s, %v programmed", err, b.podsIn(t, state), state, b.podsIn(t, Programmed))
			}
			b.Ledger.Mark(s, FailedPod, false)
			b.Forget(s.ID)
			b.Ledger.ForgetPod("uid-1")
			if n := b.podsIn(t, FailedPod); n != 0 {
				t.Errorf("after the pod has gone: %v", n)
			}
		})
	}
}
