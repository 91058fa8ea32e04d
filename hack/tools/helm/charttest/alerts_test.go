package charttest

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"text/template"

	"sigs.k8s.io/yaml"
)

const (
	alertsFile = chartDir + "/files/alerts.yaml"
	docsDir    = chartDir + "/../../docs"
)

// alerts are those of the rule file, by name.
func alerts(t *testing.T) map[string]rule {
	t.Helper()
	return byName(t, decodeRules(t, read(t, alertsFile)))
}

func decodeRules(t *testing.T, text string) ruleFile {
	t.Helper()
	var file ruleFile
	if err := yaml.UnmarshalStrict([]byte(text), &file); err != nil {
		t.Fatal(err)
	}
	return file
}

func byName(t *testing.T, file ruleFile) map[string]rule {
	t.Helper()
	rules := map[string]rule{}
	for _, group := range file.Groups {
		for _, r := range group.Rules {
			if _, twice := rules[r.Alert]; twice || r.Alert == "" {
				t.Errorf("alert %q is there twice, or has no name", r.Alert)
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
		if !strings.HasPrefix(name, "PodNetwork") {
			t.Errorf("%s: the name does not say whose it is", name)
		}
	}
}

// The PrometheusRule has the rule file's alerts, with templates of Prometheus as they are, and the reader's own address of the runbook.
func TestPrometheusRuleIsTheRuleFile(t *testing.T) {
	made := custom[prometheusRule](t, "metrics: {prometheusRule: {enabled: true, labels: {release: kps}, runbookURL: 'https://wiki/net'}}", "PrometheusRule")
	if made == nil || made.Labels["release"] != "kps" {
		t.Fatalf("rendered %+v", made)
	}
	want := decodeRules(t, strings.ReplaceAll(read(t, alertsFile), "docs/monitoring.md#", "https://wiki/net#"))
	got, errGot := yaml.Marshal(made.Spec)
	wanted, errWant := yaml.Marshal(want)
	if errGot != nil || errWant != nil || string(got) != string(wanted) {
		t.Errorf("rendered %s\nwant %s", got, wanted)
	}
}

// The alerts about the DaemonSet know it by its name, whatever values that comes from.
func TestPrometheusRule_otherName_namesTheDaemonSet(t *testing.T) {
	for values, want := range map[string]string{"nameOverride: mesh": name + "-mesh", "fullnameOverride: pods": "pods"} {
		made := custom[prometheusRule](t, "{"+values+", metrics: {prometheusRule: {enabled: true}}}", "PrometheusRule")
		text, err := yaml.Marshal(made.Spec)
		if all, named := strings.Count(string(text), "daemonset="), strings.Count(string(text), `{daemonset="`+want+`"}`); err != nil || all == 0 || named != all {
			t.Errorf("%s: %d of %d times the alerts name %s, error %v", values, named, all, want, err)
		}
	}
}

// alertCase is one unit test of an alert.
type alertCase struct {
	Alert  string `json:"alert"`
	Name   string `json:"name"`
	At     string `json:"at"`
	Series []struct {
		Series string `json:"series"`
		Values string `json:"values"`
	} `json:"series"`
	// Fires has the alert's labels; nil means that it does not fire.
	Fires map[string]string `json:"fires"`
	// Value is what the text shows.
	Value float64 `json:"value"`
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

func TestPrometheusTakesTheAlerts(t *testing.T) {
	promtool(t, "check", "rules", alertsFile)
}

// The configuration for a Prometheus without the operator is one that Prometheus takes. Debian's is built without discovery by Kubernetes.
func TestPrometheusTakesTheConfigurationOfTheDocs(t *testing.T) {
	_, rest, _ := strings.Cut(read(t, filepath.Join(docsDir, "monitoring.md")), "## Without the operator")
	_, rest, _ = strings.Cut(rest, "```yaml\n")
	config, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("docs/monitoring.md has no configuration")
	}
	before, discovery, _ := strings.Cut(config, "    kubernetes_sd_configs:\n")
	_, after, ok := strings.Cut(discovery, "    relabel_configs:\n")
	if !ok {
		t.Fatal("the configuration has no discovery before its relabel_configs")
	}
	config = before + "    relabel_configs:\n" + after
	dir := t.TempDir()
	for name, text := range map[string]string{"prometheus.yaml": config, "alerts.yaml": read(t, alertsFile)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	promtool(t, "check", "config", filepath.Join(dir, "prometheus.yaml"))
}

// Each alert fires when it should, with the text that people get, and stays silent when it should not.
func TestAlertsFire(t *testing.T) {
	var cases []alertCase
	if err := yaml.UnmarshalStrict([]byte(read(t, "testdata/alerts/cases.yaml")), &cases); err != nil {
		t.Fatal(err)
	}
	rules := alerts(t)
	fires, silent := map[string]bool{}, map[string]bool{}
	tests := make([]any, 0, len(cases))
	for _, c := range cases {
		r, ok := rules[c.Alert]
		if !ok {
			t.Errorf("case %q: there is no alert %s", c.Name, c.Alert)
		}
		expected := []any{}
		if c.Fires != nil {
			expected = append(expected, map[string]any{"exp_labels": c.Fires, "exp_annotations": rendered(t, r, c)})
		}
		fires[c.Alert], silent[c.Alert] = fires[c.Alert] || c.Fires != nil, silent[c.Alert] || c.Fires == nil
		tests = append(tests, map[string]any{
			"name": c.Alert + ": " + c.Name, "interval": "1m", "input_series": c.Series,
			"alert_rule_test": []any{map[string]any{"eval_time": c.At, "alertname": c.Alert, "exp_alerts": expected}},
		})
	}
	for name := range rules {
		if !fires[name] || !silent[name] {
			t.Errorf("%s: a case in which it fires: %t, and one in which it does not: %t", name, fires[name], silent[name])
		}
	}
	file, err := filepath.Abs(alertsFile)
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(map[string]any{"rule_files": []string{file}, "evaluation_interval": "1m", "tests": tests})
	if err != nil {
		t.Fatal(err)
	}
	written := filepath.Join(t.TempDir(), "tests.yaml")
	if err := os.WriteFile(written, text, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "test", "rules", written)
}

// rendered returns the annotations as Prometheus renders them, whose templates are Go's with two variables more.
func rendered(t *testing.T, r rule, c alertCase) map[string]string {
	t.Helper()
	out := map[string]string{}
	labels := map[string]string{}
	for key, value := range c.Fires {
		if key != "severity" { // which the rule adds
			labels[key] = value
		}
	}
	for key, text := range r.Annotations {
		tmpl, err := template.New(key).Option("missingkey=zero").Parse("{{ $labels := .Labels }}{{ $value := .Value }}" + text)
		if err != nil {
			t.Fatalf("%s: %v", r.Alert, err)
		}
		var b strings.Builder
		if err := tmpl.Execute(&b, map[string]any{"Labels": labels, "Value": c.Value}); err != nil {
			t.Fatalf("%s: %v", r.Alert, err)
		}
		out[key] = b.String()
		if strings.Contains(out[key], "<no value>") {
			t.Errorf("%s: %s says %s", r.Alert, key, strconv.Quote(out[key]))
		}
	}
	return out
}
