package e2e

import (
	"context"
	"fmt"
	"math"
	"os"
	"testing"
	"time"
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
		s.await(t, pod.Name, hasStatus(statusFailed))
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

// Makes what hack/plots draws, in the file that E2E_DRAWINGS names: a minute in which pods start, and one loses its rules again and again and
// has a wrong annotation for a while.
//
//e2e:rounds nri
func TestPrometheusDrawings(t *testing.T) {
	file := os.Getenv("E2E_DRAWINGS")
	if file == "" {
		t.Skip("E2E_DRAWINGS names no file")
	}
	s := newSpace(t, asked())
	p := s.startPrometheus(t)
	began := time.Now()
	victim := s.startMesh(t, meshPod("victim", nil))
	for wave := range 4 {
		for i := range 3 + 2*wave {
			s.create(t, meshPod(fmt.Sprintf("wave-%d-%d", wave, i), nil))
		}
		for i := range 3 + 2*wave {
			s.await(t, fmt.Sprintf("wave-%d-%d", wave, i), hasStatus(statusInitialized))
		}
		_, err := inNamespace(t.Context(), s.sandboxOf(t, victim).here(s.cluster), "nft delete table inet pod-network-controller")
		must(t, err)
		if wave == 1 {
			s.annotate(t, victim.Name, map[string]any{keyExcludeInbound: "all"})
		}
		if wave == 2 {
			s.annotate(t, victim.Name, map[string]any{keyExcludeInbound: nil})
		}
		<-time.After(10 * time.Second)
	}
	must(t, writeDrawings(file, drawPanels(t, p, began)))
}

func drawPanels(t *testing.T, p prometheus, since time.Time) []drawing {
	t.Helper()
	var out []drawing
	for _, one := range dashboardPanels(t) {
		if one.Type != "timeseries" {
			continue
		}
		d := drawing{Title: one.Title, Unit: one.FieldConfig.Defaults.Unit}
		for _, target := range one.Targets {
			found, err := p.queryRange(t.Context(), target.query(), since)
			must(t, err)
			for _, series := range found {
				l := line{Legend: target.legend(series.Metric)}
				for _, sample := range series.Values {
					at, _ := sample[0].(float64)
					if v := sample.value(); !math.IsNaN(v) { // a quantile of nothing
						l.Points = append(l.Points, [2]float64{at - float64(since.Unix()), v})
					}
				}
				d.Lines = append(d.Lines, l)
			}
		}
		out = append(out, d)
	}
	return out
}
