package charttest

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const dashboardFile = chartDir + "/files/dashboard.json"

// dashboard has what Grafana needs of a dashboard, and what this test looks at.
type dashboard struct {
	UID, Title    string
	SchemaVersion int
	Templating    struct{ List []struct{ Name, Type string } }
	Panels        []dashboardPanel
}

type dashboardPanel struct {
	ID                       int
	Type, Title, Description string
	Datasource               source
	Targets                  []struct {
		Datasource                source
		Expr, LegendFormat, RefID string
	}
}

type source struct{ Type, UID string }

func theDashboard(t *testing.T) dashboard {
	t.Helper()
	var d dashboard
	must(t, json.Unmarshal([]byte(read(t, dashboardFile)), &d))
	return d
}

// Grafana loads the dashboard into any installation: no data source has a name, ids are unique.
func TestDashboardIsOne(t *testing.T) {
	d := theDashboard(t)
	if d.UID == "" || len(d.UID) > 40 || d.Title == "" || d.SchemaVersion < 36 {
		t.Errorf("uid %q, title %q, schemaVersion %d", d.UID, d.Title, d.SchemaVersion)
	}
	variables := map[string]string{}
	for _, v := range d.Templating.List {
		variables[v.Name] = v.Type
	}
	if variables["datasource"] != "datasource" || variables["node"] != "query" {
		t.Errorf("variables %v", variables)
	}
	ids := map[int]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.ID == 0 || p.Title == "" {
			t.Errorf("panel %d %q: the id is there twice, or a title is missing", p.ID, p.Title)
		}
		ids[p.ID] = true
		if p.Type != "row" {
			checkPanel(t, p)
		}
	}
}

func checkPanel(t *testing.T, p dashboardPanel) {
	t.Helper()
	want := source{"prometheus", "${datasource}"}
	if p.Type != "stat" && p.Type != "timeseries" || p.Description == "" || p.Datasource != want || len(p.Targets) == 0 {
		t.Errorf("panel %q: type %s, description %q, data source %v, %d queries", p.Title, p.Type, p.Description, p.Datasource, len(p.Targets))
	}
	refs := map[string]bool{}
	for _, target := range p.Targets {
		if refs[target.RefID] || target.RefID == "" || target.Datasource != want {
			t.Errorf("panel %q: refId %q, data source %v", p.Title, target.RefID, target.Datasource)
		}
		refs[target.RefID] = true
		if !strings.Contains(target.Expr, `node=~"$node"`) {
			t.Errorf("panel %q: the query %s does not follow the variable node", p.Title, target.Expr)
		}
	}
}

// Each metric of ours that a query names is one that the code makes. That it has data is for the end-to-end tests to see.
func TestQueriesNameMetricsOfTheCode(t *testing.T) {
	made := regexp.MustCompile(`MetricPrefix ?\+ ?"([a-z_]+)"`)
	known := map[string]bool{}
	for _, dir := range []string{"controllers", "agent", "sidecars/node"} {
		root := filepath.Join(rootDir, dir)
		if err := fs.WalkDir(os.DirFS(root), ".", func(path string, _ fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
				for _, m := range made.FindAllStringSubmatch(read(t, filepath.Join(root, path)), -1) {
					known[m[1]] = true
				}
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{dashboardFile, alertsFile, filepath.Join(docsDir, "monitoring.md")} {
		names := regexp.MustCompile(`istio_pod_network_controller_([a-z_]+[a-z])`).FindAllStringSubmatch(read(t, file), -1)
		if len(names) == 0 {
			t.Errorf("%s names no metric", file)
		}
		for _, name := range names {
			base := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name[1], "")
			if !known[base] {
				t.Errorf("%s: %s is no metric of the code", file, name[0])
			}
		}
	}
}
