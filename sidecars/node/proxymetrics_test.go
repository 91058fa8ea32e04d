package node

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"istio-pod-network-controller/sidecars"
)

// A profile's series have the manager's figures, and go with the profile's last pod.
func TestProxyMetrics_figures_areServed(t *testing.T) {
	figures := map[string]sidecars.Figures{
		"edge": {
			Pods: map[sidecars.Health]int{sidecars.HealthReady: 3, sidecars.HealthSilent: 2}, Paused: true, Restarts: 4, Upgraded: 5, Failed: 6,
		},
		"other": {Pods: map[sidecars.Health]int{sidecars.HealthFailed: 1}},
	}
	registry := prometheus.NewPedanticRegistry()
	m := newProxyMetrics(func() map[string]sidecars.Figures { return figures })
	registry.MustRegister(m)
	m.observe("edge", time.Second)
	want := map[string]float64{
		"managed_proxies edge ready": 3, "managed_proxies edge silent": 2, "managed_proxy_rollout_paused edge": 1, "managed_proxy_restarts_total edge": 4,
		"managed_proxy_upgrades_total edge succeeded": 5, "managed_proxy_upgrades_total edge failed": 6, "managed_proxy_start_duration_seconds edge": 1,
		"managed_proxies other failed": 1, "managed_proxy_rollout_paused other": 0, "managed_proxy_restarts_total other": 0,
		"managed_proxy_upgrades_total other succeeded": 0, "managed_proxy_upgrades_total other failed": 0, "managed_proxy_start_duration_seconds other": 0,
	}
	if diff := cmp.Diff(want, valuesOf(t, registry)); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
	figures = nil
	if left := valuesOf(t, registry); len(left) != 0 {
		t.Errorf("left of profiles that are gone: %v", left)
	}
}
