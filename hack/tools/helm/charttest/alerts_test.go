package charttest

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/template"

	"sigs.k8s.io/yaml"
)

const alertsFile = chartDir + "/files/alerts.yaml"

// rule is an alert of a rule file of Prometheus.
type rule struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// alerts are those of the rule file, by name.
func alerts(t *testing.T) map[string]rule {
	t.Helper()
	var file struct {
		Groups []struct {
			Name  string `json:"name"`
			Rules []rule `json:"rules"`
		} `json:"groups"`
	}
	must(t, yaml.UnmarshalStrict([]byte(read(t, alertsFile)), &file))
	rules := map[string]rule{}
	for _, group := range file.Groups {
		for _, r := range group.Rules {
			if _, twice := rules[r.Alert]; twice || !strings.HasPrefix(r.Alert, "PodNetwork") {
				t.Errorf("alert %q is there twice, or its name does not say whose it is", r.Alert)
			}
			rules[r.Alert] = r
		}
	}
	return rules
}

// anchors returns the anchors of a page's headings, as forges make them.
func anchors(t *testing.T, page string) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(read(t, page), -1) {
		words := regexp.MustCompile(`[^a-z0-9 -]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		found[strings.ReplaceAll(words, " ", "-")] = true
	}
	return found
}

// Who is called at night reads what it is, what it means, and where the rest is.
func TestAlertsSayWhatToDo(t *testing.T) {
	sections := anchors(t, filepath.Join(docsDir, "monitoring.md"))
	for name, r := range alerts(t) {
		page, anchor, _ := strings.Cut(r.Annotations["runbook_url"], "#")
		if page != "docs/monitoring.md" || anchor != strings.ToLower(name) || !sections[anchor] {
			t.Errorf("%s: runbook_url %q, and docs/monitoring.md has a section for it: %t", name, r.Annotations["runbook_url"], sections[anchor])
		}
		if r.Annotations["summary"] == "" || len(r.Annotations["description"]) < 80 || len(r.Annotations) != 3 {
			t.Errorf("%s: annotations %q", name, r.Annotations)
		}
		if s := r.Labels["severity"]; s != "warning" && s != "critical" {
			t.Errorf("%s: severity %q", name, s)
		}
	}
}

// promtool runs Prometheus' own checker. Without it the test is skipped, but not in CI.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	switch {
	case err != nil && os.Getenv("CI") != "":
		t.Fatalf("CI has to have promtool, of Debian's package prometheus: %v", err)
	case err != nil:
		t.Skip("there is no promtool: install Debian's package prometheus, as root by hack/preflight.sh kernel")
	}
	if out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	must(t, os.WriteFile(file, []byte(text), 0o600))
}

func TestPrometheusTakesTheAlerts(t *testing.T) { promtool(t, "check", "rules", alertsFile) }

// The configuration for a Prometheus without the operator is one that Prometheus takes. Debian's is built without discovery by Kubernetes.
func TestPrometheusTakesTheConfigurationOfTheDocs(t *testing.T) {
	const discovery, relabel = "    kubernetes_sd_configs:\n", "    relabel_configs:\n"
	_, rest, _ := strings.Cut(read(t, filepath.Join(docsDir, "monitoring.md")), "## Without the operator")
	config := regexp.MustCompile("(?s)```yaml\n(.*?)" + discovery + ".*?(" + relabel + ".*?)```").FindStringSubmatch(rest)
	if config == nil {
		t.Fatal("docs/monitoring.md has no configuration with discovery before its relabel_configs")
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "prometheus.yaml"), config[1]+config[2])
	write(t, filepath.Join(dir, "alerts.yaml"), read(t, alertsFile))
	promtool(t, "check", "config", filepath.Join(dir, "prometheus.yaml"))
}

// alertCase is one unit test of an alert.
type alertCase struct {
	Alert string `json:"alert"`
	Name  string `json:"name"`
	At    string `json:"at"`
	// Series have values by name and labels.
	Series map[string]string `json:"series"`
	// Fires has the alert's labels beside those of its target; an empty one is not there. nil means that it does not fire.
	Fires map[string]string `json:"fires"`
	// Value is what the text shows.
	Value float64 `json:"value"`
	// Gone is a time at which it fires no longer.
	Gone string `json:"gone"`
}

// Each alert fires when it should, with the text that people get, goes when its cause has gone, and stays silent when it should not fire. One Prometheus
// may watch several clusters, which have a label then: each has alerts of its own.
func TestAlerts_drills_fireAndGo(t *testing.T) {
	var cases []alertCase
	must(t, yaml.UnmarshalStrict([]byte(read(t, "testdata/alerts/cases.yaml")), &cases))
	rules := alerts(t)
	gone, silent := map[string]bool{}, map[string]bool{}
	var tests []any
	for _, c := range cases {
		gone[c.Alert], silent[c.Alert] = gone[c.Alert] || c.Gone != "", silent[c.Alert] || c.Fires == nil
		tests = append(tests, c.promtool(t, rules[c.Alert], ""))
		if len(c.Series) > 0 {
			tests = append(tests, c.promtool(t, rules[c.Alert], "east", "west"))
		}
	}
	for name := range rules {
		if !gone[name] || !silent[name] {
			t.Errorf("%s: a case in which it fires and goes: %t, and one in which it does not fire: %t", name, gone[name], silent[name])
		}
	}
	file, err := filepath.Abs(alertsFile)
	must(t, err)
	written := filepath.Join(t.TempDir(), "tests.yaml")
	write(t, written, yamlOf(t, map[string]any{"rule_files": []string{file}, "evaluation_interval": "1m", "tests": tests}))
	promtool(t, "test", "rules", written)
}

// promtool returns the case as a unit test of promtool, in which each of the clusters has all series.
func (c alertCase) promtool(t *testing.T, r rule, clusters ...string) any {
	t.Helper()
	if r.Alert == "" {
		t.Errorf("case %q: there is no alert %s", c.Name, c.Alert)
	}
	series, expected := []any{}, []any{}
	for _, cluster := range clusters {
		for name, values := range c.Series {
			series = append(series, map[string]any{"series": fullName(name, cluster), "values": values})
		}
		if c.Fires != nil {
			labels := c.labels(r, cluster)
			expected = append(expected, map[string]any{"exp_labels": labels, "exp_annotations": annotations(t, r, labels, c.Value)})
		}
	}
	at := []any{map[string]any{"eval_time": c.At, "alertname": c.Alert, "exp_alerts": expected}}
	if c.Gone != "" {
		at = append(at, map[string]any{"eval_time": c.Gone, "alertname": c.Alert, "exp_alerts": []any{}})
	}
	return map[string]any{
		"name": c.Alert + ": " + c.Name + " " + strings.Join(clusters, ","), "interval": "1m", "input_series": series, "alert_rule_test": at,
	}
}

// target are the labels of all series of an agent.
func target() map[string]string {
	return map[string]string{"node": "n1", "instance": "10.0.0.1:15079", "job": "istio-pod-network-controller"}
}

// fullName adds the labels of the target and the cluster to a series, and our prefix to its name.
func fullName(series, cluster string) string {
	name, labels, _ := strings.Cut(strings.TrimSuffix(series, "}"), "{")
	add := map[string]string{"cluster": cluster}
	if !strings.HasPrefix(name, "kube_") {
		maps.Copy(add, target())
		if name != "up" {
			name = "istio_pod_network_controller_" + name
		}
	}
	for _, key := range slices.Sorted(maps.Keys(add)) {
		if add[key] != "" && !strings.Contains(labels, key+"=") {
			labels = strings.TrimPrefix(labels+", ", ", ") + fmt.Sprintf("%s=%q", key, add[key])
		}
	}
	return name + "{" + labels + "}"
}

// labels are those of the alert in a cluster.
func (c alertCase) labels(r rule, cluster string) map[string]string {
	out := map[string]string{"cluster": cluster, "severity": r.Labels["severity"]}
	ofTarget := slices.ContainsFunc(slices.Collect(maps.Keys(c.Series)), func(name string) bool { return !strings.HasPrefix(name, "kube_") })
	switch {
	case len(c.Series) == 0:
		out["job"] = target()["job"] // of absent()
	case ofTarget && c.Fires["daemonset"] == "":
		maps.Copy(out, target())
	}
	maps.Copy(out, c.Fires)
	maps.DeleteFunc(out, func(_, value string) bool { return value == "" })
	return out
}

// annotations are an alert's as Prometheus renders them, whose templates are Go's with two variables more.
func annotations(t *testing.T, r rule, labels map[string]string, value float64) map[string]string {
	t.Helper()
	out := map[string]string{}
	labels = maps.Clone(labels)
	delete(labels, "severity") // which the rule adds
	for key, text := range r.Annotations {
		var b strings.Builder
		tmpl, err := template.New(key).Option("missingkey=zero").Parse("{{ $labels := .Labels }}{{ $value := .Value }}" + text)
		if err == nil {
			err = tmpl.Execute(&b, map[string]any{"Labels": labels, "Value": value})
		}
		if out[key] = b.String(); err != nil || strings.Contains(out[key], "<no value>") {
			t.Errorf("%s: %s says %q, error %v", r.Alert, key, out[key], err)
		}
	}
	return out
}
