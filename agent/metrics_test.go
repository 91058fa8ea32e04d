package agent

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/runtime/cni"
	"istio-pod-network-controller/runtime/nri"
)

// valuesOf returns the values of counters and gauges, and how often each histogram was observed, by name without the prefix and labels' values.
func valuesOf(t *testing.T, g prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := strings.TrimPrefix(f.GetName(), controllers.MetricPrefix)
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			values[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return values
}

// hookMetrics returns what an agent with these options registers before the runtime calls.
func hookMetrics(t *testing.T, o Options) (*agent, *prometheus.Registry) {
	t.Helper()
	registry := prometheus.NewRegistry()
	o.NRI.Socket, o.NRI.Name, o.NRI.Index = t.TempDir()+"/none.sock", nri.DefaultName, nri.DefaultIndex
	o.Chain = Chain{Plugin: cni.Conf{Socket: "/run/x/cni.sock"}}
	o.Intent = intent.Config{AgentNamespace: "mesh"}
	a := &agent{Options: o, core: newCoreHolder(), ready: &readiness{}, metrics: registry}
	if _, err := a.earlyHooks(); err != nil {
		t.Fatal(err)
	}
	if err := registerMetrics(registry, a.core, a.ready, a.hooks(), a.collectors); err != nil {
		t.Fatal(err)
	}
	return a, registry
}

// Each hook that is switched on has its metrics from the start, and no other has.
func TestMetricsOfHooks(t *testing.T) {
	watch := map[string]float64{"hook_up watch": 0, "api_server_away_seconds": 0}
	byNRI := map[string]float64{
		"hook_up watch": 0, "api_server_away_seconds": 0, "hook_up nri": 0, "early_hook": 0, "nri_connected": 0, "nri_offered": 0, "nri_panics_total": 0,
		"fail_open_total nri": 0, "ready nri": 0,
	}
	byCNI := map[string]float64{
		"hook_up watch": 0, "api_server_away_seconds": 0, "hook_up cni": 0, "early_hook": 0, "fail_open_total cni": 0, "ready cni": 0,
		"cni_call_duration_seconds ADD passed": 0, "cni_call_duration_seconds ADD refused": 0,
		"cni_call_duration_seconds CHECK passed": 0, "cni_call_duration_seconds CHECK refused": 0,
	}
	for name, tc := range map[string]struct {
		nri, cni string
		want     map[string]float64
	}{
		"the watch alone": {NRIOff, CNIOff, watch},
		"NRI":             {NRIAuto, CNIOff, byNRI},
		"CNI":             {NRIOff, CNIInstall, byCNI},
	} {
		t.Run(name, func(t *testing.T) {
			_, registry := hookMetrics(t, Options{NRI: NRI{Mode: tc.nri}, CNI: tc.cni})
			maps.Copy(tc.want, map[string]float64{
				"pod_source kubelet": 0, "pod_source api": 1, "pod_source_changes_total": 0, "kubelet_last_event_timestamp_seconds": 0, "kept_objects_age_seconds": 0, "kubelet_missed_changes_total": 0,
			})
			if diff := cmp.Diff(tc.want, valuesOf(t, registry)); diff != "" {
				t.Errorf("metrics (-want +got):\n%s", diff)
			}
		})
	}
}

// One working early hook of two is enough.
func TestTheEarlyHookIsUpIfOneIs(t *testing.T) {
	a, registry := hookMetrics(t, Options{NRI: NRI{Mode: NRIAuto}, CNI: CNIInstall})
	passes := func() error { return nil }
	a.cniState.checkChain.Store(&passes)
	values := valuesOf(t, registry)
	if values["early_hook"] != 0 || values["hook_up cni"] != 0 { // nobody listens at the socket
		t.Errorf("before the socket is served: %v", values)
	}
	a.cniState.server = nil // what is left to check is the chain
	if values := valuesOf(t, registry); values["early_hook"] != 1 || values["hook_up cni"] != 1 || values["hook_up nri"] != 0 {
		t.Errorf("with a working chain: %v", values)
	}
}

func TestReadinessChecksAreMetrics(t *testing.T) {
	ready := &readiness{}
	ready.add(part{name: "cache", check: func(context.Context) error { return nil }})
	ready.add(part{name: "runtime", check: func(ctx context.Context) error {
		if _, bounded := ctx.Deadline(); !bounded {
			t.Error("the check has no time limit")
		}
		return errors.New("connection refused")
	}})
	registry := prometheus.NewRegistry()
	registry.MustRegister(readyMetric{ready})
	if diff := cmp.Diff(map[string]float64{"ready cache": 1, "ready runtime": 0}, valuesOf(t, registry)); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}

func TestWhatNRICallsCount(t *testing.T) {
	for name, tc := range map[string]struct {
		failOpen            bool
		outcome             nri.Outcome
		wantOpen, wantPanic float64
	}{
		"programmed":                        {failOpen: true, outcome: nri.Programmed},
		"refused":                           {outcome: nri.Refused},
		"let through":                       {failOpen: true, outcome: nri.LetThrough, wantOpen: 1},
		"late, and refused":                 {outcome: nri.Late},
		"late, and let through":             {failOpen: true, outcome: nri.Late, wantOpen: 1},
		"a panic, and refused":              {outcome: nri.Panicked, wantPanic: 1},
		"a panic, and let through after it": {failOpen: true, outcome: nri.Panicked, wantOpen: 1, wantPanic: 1},
	} {
		t.Run(name, func(t *testing.T) {
			observe, collectors := observeNRI(tc.failOpen)
			observe("RunPodSandbox", tc.outcome, time.Millisecond)
			registry := prometheus.NewRegistry()
			registry.MustRegister(collectors...)
			want := map[string]float64{
				"fail_open_total nri": tc.wantOpen, "nri_panics_total": tc.wantPanic,
				"nri_call_duration_seconds RunPodSandbox " + string(tc.outcome): 1,
			}
			if diff := cmp.Diff(want, valuesOf(t, registry)); diff != "" {
				t.Errorf("metrics (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCNIHook_requests_areMeasured(t *testing.T) {
	for _, failOpen := range []bool{false, true} {
		c := cniHookOf(ensurer{core: newCoreHolder(), failOpen: failOpen})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		for _, request := range []func(context.Context, podnet.Sandbox) error{c.Add, c.Check, c.Del} {
			_ = request(ctx, podnet.Sandbox{}) // without a core
		}
		cancel()
		registry := prometheus.NewRegistry()
		registry.MustRegister(c.requests)
		passed := map[bool]float64{true: 1}[failOpen]
		want := map[string]float64{
			"cni_call_duration_seconds ADD passed": passed, "cni_call_duration_seconds ADD refused": 1 - passed,
			"cni_call_duration_seconds CHECK passed": 1, "cni_call_duration_seconds CHECK refused": 0, "cni_call_duration_seconds DEL passed": 1,
		}
		if diff := cmp.Diff(want, valuesOf(t, registry)); diff != "" {
			t.Errorf("requests (-want +got):\n%s", diff)
		}
	}
}

func TestPodsThatTheCNIHookLetsThroughAreCounted(t *testing.T) {
	for _, failOpen := range []bool{false, true} {
		c := cniHookOf(ensurer{by: controllers.CNI, core: newCoreHolder(), failOpen: failOpen})
		_, err := c.ensure(t.Context(), podnet.Sandbox{Namespace: "shop", Name: "cart"})
		registry := prometheus.NewRegistry()
		registry.MustRegister(c.letThrough)
		n := valuesOf(t, registry)["fail_open_total cni"]
		if (err == nil) != failOpen || n != map[bool]float64{true: 1}[failOpen] {
			t.Errorf("--fail-open=%t: error %v, counted %v", failOpen, err, n)
		}
	}
}
