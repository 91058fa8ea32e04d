package node

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/sidecars/shared"
)

// A profile's series have what its proxy's manager says, and go with the profile.
func TestSharedMetrics_figures_areServed(t *testing.T) {
	figures := map[string]shared.Figures{
		"edge": {
			Served: 3, Refused: 2, Waiting: 1, Running: true, Newest: true,
			Reloads: map[shared.Result]uint64{shared.Applied: 7, shared.Refused: 6, shared.Unconfirmed: 5, shared.Failed: 4},
		},
		"other": {Waiting: 1},
	}
	registry := prometheus.NewPedanticRegistry()
	m := newSharedMetrics(func() map[string]shared.Figures { return figures })
	registry.MustRegister(m)
	for range 3 {
		m.observe("edge", time.Second)
	}
	want := map[string]float64{
		"shared_proxy_pods edge served": 3, "shared_proxy_pods edge refused": 2, "shared_proxy_pods edge waiting": 1, "shared_proxy_up edge": 1, "shared_proxy_newest edge": 1,
		"shared_proxy_reloads_total edge applied": 7, "shared_proxy_reloads_total edge refused": 6, "shared_proxy_reloads_total edge unconfirmed": 5,
		"shared_proxy_reloads_total edge failed": 4, "shared_proxy_change_duration_seconds edge": 3,
		"shared_proxy_pods other served": 0, "shared_proxy_pods other refused": 0, "shared_proxy_pods other waiting": 1, "shared_proxy_up other": 0, "shared_proxy_newest other": 0,
		"shared_proxy_change_duration_seconds other": 0,
	}
	if diff := cmp.Diff(want, valuesOf(t, registry)); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]string{}
	for _, f := range families {
		kinds[f.GetName()[len(controllers.MetricPrefix):]] = f.GetType().String()
		if f.GetType().String() != "HISTOGRAM" {
			continue
		}
		h := f.GetMetric()[0].GetHistogram()
		if b := h.GetBucket(); h.GetSampleSum() != 3 || len(b) != 11 || b[0].GetUpperBound() != 0.1 || b[3].GetCumulativeCount() != 0 || b[4].GetCumulativeCount() != 3 {
			t.Errorf("histogram %v", h)
		}
	}
	wantKinds := map[string]string{
		"shared_proxy_pods": "GAUGE", "shared_proxy_up": "GAUGE", "shared_proxy_newest": "GAUGE", "shared_proxy_reloads_total": "COUNTER",
		"shared_proxy_change_duration_seconds": "HISTOGRAM",
	}
	if diff := cmp.Diff(wantKinds, kinds); diff != "" {
		t.Errorf("kinds (-want +got):\n%s", diff)
	}
	figures = nil
	if left := valuesOf(t, registry); len(left) != 0 {
		t.Errorf("left of profiles that are gone: %v", left)
	}
}

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
