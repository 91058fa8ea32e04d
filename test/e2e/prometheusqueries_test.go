package e2e

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// panel is a panel of the dashboard with its queries.
type panel struct {
	Title   string       `json:"title"`
	Targets []panelQuery `json:"targets"`
}

type panelQuery struct {
	Expr string `json:"expr"`
}

// query is what Grafana would send with all nodes chosen.
func (q panelQuery) query() string {
	return strings.NewReplacer("$node", ".*", "$__rate_interval", "15s").Replace(q.Expr)
}

func dashboardPanels(t *testing.T) []panel {
	t.Helper()
	data, err := os.ReadFile(chartFiles + "dashboard.json")
	must(t, err)
	return decode[struct {
		Panels []panel `json:"panels"`
	}](t, string(data)).Panels
}

// alertMetrics are the metrics that the alerts ask for.
func alertMetrics(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile(chartFiles + "alerts.yaml")
	must(t, err)
	names := map[string]bool{}
	for _, name := range regexp.MustCompile(metricPrefix+`[a-z_]+`).FindAllString(string(data), -1) {
		names[name] = true
	}
	out := make([]string, 0, len(names))
	for name := range names {
		out = append(out, name)
	}
	return out
}

// absent is what an agent has only in the CNI chain, or with pods of a shared proxy.
func absent(query string) bool {
	return strings.Contains(query, metricPrefix+"cni_") || strings.Contains(query, metricPrefix+"shared_proxy_")
}
