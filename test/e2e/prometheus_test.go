package e2e

import (
	"context"
	"fmt"
	"testing"
)

// A real Prometheus reads a real agent: every query of the dashboard and of the alerts has data, and an alert fires for a pod that fails
// until that is mended.
//
// Not parallel: it wants a node without other failed pods.
//
//e2e:rounds core nri
func TestPrometheusReadsTheAgent(t *testing.T) {
	s := newQuietSpace(t, asked())
	p := s.startPrometheus(t)
	pod := s.startMesh(t, meshPod("observed", nil))
	m := newManaged(t)
	m.startManaged(t, plainPod("proxied"))
	t.Run("data", func(t *testing.T) { wantData(t, p) })
	t.Run("an alert", func(t *testing.T) {
		const alert = "PodNetworkPodsInvalid"
		p.awaitFiring(t, alert, false)
		s.annotate(t, pod.Name, map[string]any{keyExcludeInbound: "all"})
		s.awaitEvent(t, pod.Name, "SettingWithoutEffect", `"all"`)
		p.awaitFiring(t, alert, true)
		s.annotate(t, pod.Name, map[string]any{keyExcludeInbound: nil})
		s.await(t, pod.Name, hasStatus(statusInitialized))
		p.awaitFiring(t, alert, false)
	})
	broken, err := p.brokenRules(t.Context())
	must(t, err)
	for _, rule := range broken {
		t.Error(rule)
	}
}

// wantData wants an answer to every query of the dashboard, and every metric of the alerts, that an agent with NRI has.
func wantData(t *testing.T, p prometheus) {
	t.Helper()
	queries := map[string]string{}
	for _, one := range dashboardPanels(t) {
		for i, target := range one.Targets {
			queries[fmt.Sprintf("%s, query %d", one.Title, i)] = target.query()
		}
	}
	for _, name := range alertMetrics(t) {
		queries["alerts: "+name] = name
	}
	if len(queries) < 30 {
		t.Fatalf("there are only %d queries", len(queries))
	}
	for name, query := range queries {
		eventually(t, name, func(ctx context.Context) error {
			found, err := p.query(ctx, query)
			if err == nil && len(found) == 0 && !absent(query) {
				err = fmt.Errorf("no data for %s", query)
			}
			return err
		})
	}
}
