package main

import (
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"istio-pod-network-controller/agent"
	"istio-pod-network-controller/agent/cli"
	"istio-pod-network-controller/controllers"
)

const checkout = "../.."

func reference(t *testing.T) (map[string]string, *source) {
	t.Helper()
	all, err := pages(checkout, "")
	if err != nil {
		t.Fatal(err)
	}
	s, err := parseSource(checkout)
	if err != nil {
		t.Fatal(err)
	}
	return all, s
}

// literals calls visit with every text of the code but the paths of imports.
func (s *source) literals(visit func(p *sourcePackage, at token.Pos, text string)) {
	for _, p := range s.packages {
		for _, file := range p.files {
			ast.Inspect(file, func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					if text, err := strconv.Unquote(lit.Value); err == nil {
						visit(p, lit.Pos(), text)
					}
				}
				_, imports := n.(*ast.ImportSpec)
				return !imports
			})
		}
	}
}

// ofTheAgent reports whether the keys in a package are what pods and the agent say to each other. Commands that look at a cluster know keys
// of other projects, labels of a managed proxy's container are the agent's own, and what Istio's proxy is computed from is what its injector reads.
func ofTheAgent(dir string) bool {
	top, _, _ := strings.Cut(dir, "/")
	inside := []string{"agent", "internal/agentstatus", "internal/intent", "internal/sidecar", "internal/podnet"}
	return top != "diagnostics" && dir != "runtime/container" && dir != "sidecars/istio" && (top != "internal" || slices.Contains(inside, dir))
}

func TestPages_everyKey_isListed(t *testing.T) {
	all, s := reference(t)
	key := regexp.MustCompile(`^([a-z-]+\.)*(istio\.io|openshift\.io|istio-pod-network-controller)/[A-Za-z][A-Za-z.-]*$`)
	seen := 0
	s.literals(func(p *sourcePackage, at token.Pos, text string) {
		if !key.MatchString(text) || !ofTheAgent(p.dir) {
			return
		}
		seen++
		if !strings.Contains(all["annotations.md"], "`"+text+"`") {
			t.Errorf("%s: %s is not in annotations.md: describe it in keys.go", s.at(at), text)
		}
	})
	if seen < 20 {
		t.Errorf("%d keys seen in the code", seen)
	}
	for _, c := range s.pkg("internal/intent").constants {
		if value, ok := s.text(s.pkg("internal/intent"), c.value); ok && strings.HasPrefix(c.name, "env") && !strings.Contains(all["annotations.md"], "`"+value+"`") {
			t.Errorf("%s: %s is not in annotations.md: describe it in keys.go", s.at(c.pos), value)
		}
	}
}

// What is described is in the code, and described in full.
func TestPages_everyDescription_isOfTheCode(t *testing.T) {
	_, s := reference(t)
	known := map[string]bool{}
	s.literals(func(_ *sourcePackage, _ token.Pos, text string) { known[text] = true })
	for _, k := range append(keys(), environment()...) {
		if !known[k.name] || k.values == "" || k.without == "" || k.meaning == "" {
			t.Errorf("%+v: is in the code: %v", k, known[k.name])
		}
	}
	described := map[string]bool{}
	for _, r := range slices.Concat(podEvents(), nodeEvents()) {
		described[r.name] = r.kind != "" && r.means != "" && r.do != ""
	}
	for _, kind := range agent.ChainFaults() {
		if !described[agent.ChainReason+string(kind)] {
			t.Errorf("event %s is not described", kind)
		}
	}
}

func TestPages_everyReason_isListed(t *testing.T) {
	all, s := reference(t)
	both := all["conditions.md"] + all["events.md"]
	for _, dir := range []string{"internal/podreport", "api/v1alpha1"} {
		seen := 0
		for _, c := range s.pkg(dir).constants {
			value, ok := s.text(s.pkg(dir), c.value)
			if !ok || !strings.HasPrefix(c.name, "Reason") {
				continue
			}
			seen++
			if !strings.Contains(both, "`"+value+"`") {
				t.Errorf("%s: reason %s is in neither conditions.md nor events.md: describe it in reasons.go", s.at(c.pos), value)
			}
		}
		if seen == 0 {
			t.Errorf("no reason seen in %s", dir)
		}
	}
}

func TestPages_everyEvent_isListed(t *testing.T) {
	all, s := reference(t)
	events := s.events()
	for reason, at := range events {
		if !strings.Contains(all["events.md"], "`"+reason+"`") {
			t.Errorf("%s: event %s is not in events.md: describe it in reasons.go", s.at(at), reason)
		}
	}
	if len(events) == 0 {
		t.Error("no event seen in the code")
	}
}

// events returns the constant reasons of events, and where they are made.
func (s *source) events() map[string]token.Pos {
	found := map[string]token.Pos{}
	for _, p := range s.packages {
		for _, file := range p.files {
			ast.Inspect(file, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				if f, ok := call.Fun.(*ast.SelectorExpr); !ok || f.Sel.Name != "Eventf" || len(call.Args) < 6 {
					return true
				}
				if reason, constant := s.text(p, call.Args[3]); constant {
					found[reason] = call.Pos()
				}
				return true
			})
		}
	}
	return found
}

// What the scan of the code says about metrics is what a registry says about them.
func TestMetrics_controllers_areAsRegistered(t *testing.T) {
	_, s := reference(t)
	scanned, err := s.metrics()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]metric{}
	for _, m := range scanned {
		known[m.name] = m
	}
	registry := prometheus.NewRegistry()
	if _, err := controllers.NewMetrics(registry, &controllers.Ledger{}); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil || len(families) == 0 {
		t.Fatalf("%d metrics, %v", len(families), err)
	}
	for _, f := range families {
		m := known[f.GetName()]
		if m.kind != strings.ToLower(f.GetType().String()) || m.help != f.GetHelp() {
			t.Errorf("%s: %s %q in the registry, %s %q in the code", f.GetName(), f.GetType(), f.GetHelp(), m.kind, m.help)
		}
		for _, label := range f.GetMetric()[0].GetLabel() {
			if !strings.Contains(strings.Join(m.labels, " "), label.GetName()) {
				t.Errorf("%s: label %s is not among %q", f.GetName(), label.GetName(), m.labels)
			}
		}
	}
}

// tree makes a checkout with one package.
func tree(t *testing.T, dir, text string) *source {
	t.Helper()
	root := t.TempDir()
	for _, d := range append(productDirs(), dir) {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, dir, "x.go"), []byte("package x\n\nconst MetricPrefix = \"istio_pod_network_controller_\"\n"+text), 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := parseSource(root)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestMetrics_everyForm_isFound(t *testing.T) {
	const name = controllers.MetricPrefix + "a"
	cases := map[string]struct {
		text string
		want metric
		err  string
	}{
		"a gauge": {
			text: `var _ = NewGaugeFunc(prometheus.GaugeOpts{Name: MetricPrefix + "a", Help: "A."}, f)`, want: metric{name, "A.", "gauge", nil},
		},
		"a histogram with labels": {
			text: `var _ = f(prometheus.NewHistogramVec(prometheus.HistogramOpts{Help: "A." + " B.", Name: MetricPrefix + "a_duration_seconds"}, []string{"x", "y"}))`,
			want: metric{name + "_duration_seconds", "A. B.", "histogram", []string{"x", "y"}},
		},
		"constant labels": {
			text: `var _ = prometheus.GaugeOpts{Name: x.MetricPrefix + "a", Help: "A.", ConstLabels: prometheus.Labels{"x": y}}`,
			want: metric{name, "A.", "gauge", []string{"x"}},
		},
		"a description": {
			text: `var _ = prometheus.NewDesc(MetricPrefix+"a", "A.", []string{"x"}, nil)`, want: metric{name, "A.", "gauge", []string{"x"}},
		},
		"a description of a histogram": {
			text: `var _ = prometheus.NewDesc(MetricPrefix+"a_duration_seconds", "A.", nil, nil)`, want: metric{name + "_duration_seconds", "A.", "histogram", nil},
		},
		"by a function of the package": {
			text: "var _ = gauge(l, MetricPrefix+\"a\", \"A.\", prometheus.Labels{\"x\": \"1\"})", want: metric{name, "A.", "gauge", []string{"x"}},
		},
		"without help":      {text: `var _ = prometheus.GaugeOpts{Name: MetricPrefix + "a"}`, err: "no help"},
		"a computed name":   {text: `var _ = prometheus.GaugeOpts{Name: MetricPrefix + kind, Help: "A."}`, err: "a literal"},
		"a name as a const": {text: `const n = MetricPrefix + "a"`, err: "where the metric is made"},
	}
	for title, tc := range cases {
		t.Run(title, func(t *testing.T) {
			got, err := tree(t, "internal/x", tc.text).metrics()
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("got %v, want an error with %q", err, tc.err)
				}
				return
			}
			if diff := cmp.Diff([]metric{tc.want}, got, cmp.AllowUnexported(metric{})); diff != "" || err != nil {
				t.Errorf("%v\n%s", err, diff)
			}
		})
	}
}

func TestExitCodes_noComment_isAnError(t *testing.T) {
	got, err := exitCodes(tree(t, "cmd/x", "const (\n\texitA = 2 // two\n\t// exitB is one\n\texitB = 1\n)"))
	want := []exitCode{{"x", "1", "is one"}, {"x", "2", "two"}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(exitCode{})); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	if _, err := exitCodes(tree(t, "cmd/x", "const exitA = 2")); err == nil || !strings.Contains(err.Error(), "exitA") {
		t.Errorf("got %v", err)
	}
}

// A flag that several commands have word for word is described once.
func TestFlagsPage_sharedFlag_isDescribedOnce(t *testing.T) {
	page := flagsPage(nil)
	for _, want := range []string{"\n| `--envoy-port` | ", "\n| `--kubeconfig` | "} {
		if n := strings.Count(page, want); n != 1 {
			t.Errorf("%d rows %q, want 1", n, want)
		}
	}
	_, run, _ := strings.Cut(page, "## `istio-pod-network-controller run`")
	run, _, _ = strings.Cut(run, "\n## ")
	for _, want := range []string{"`--envoy-port`; ", "\n| `--metrics-addr` | "} {
		if !strings.Contains(run, want) {
			t.Errorf("the section of run lacks %q:\n%s", want, run)
		}
	}
}

// Every command that prints JSON has a section that says what is in it.
func TestDocuments_commandWithJSON_isListed(t *testing.T) {
	all, _ := reference(t)
	seen := 0
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		if output := cmd.Flags().Lookup("output"); output != nil && strings.Contains(output.Usage, "json") {
			seen++
			_, name, _ := strings.Cut(cmd.CommandPath(), " ")
			if !strings.Contains(all["json.md"], "\n## `"+name+"`\n") {
				t.Errorf("%s prints JSON, and json.md has no section for it: name its type in documents.go", name)
			}
		}
		for _, below := range cmd.Commands() {
			visit(below)
		}
	}
	visit(cli.Commands())
	if seen != len(documents()) {
		t.Errorf("%d commands print JSON, and %d are listed", seen, len(documents()))
	}
}

func TestDocuments_fields_haveTheTextsOfTheirComments(t *testing.T) {
	all, _ := reference(t)
	for _, row := range []string{
		"| `nodes[].notes[]` | list, optional | worth knowing |",                                                            // of a comment above another field
		"| `nodes[].status.revision` | text, optional | commit |",                                                           // beside it, in another package
		"| `agreement` | object | what was asked for with what is programmed |",                                             // of its type
		"| `agreement.verdict` | text | `agree`, `differ`, `unknown` |",                                                     // its values
		"| `pods[].specHash` | text, optional | `backend`, `specHash`, `reported` and `notes` come from the pod's report |", // of several
	} {
		if !strings.Contains(all["json.md"], row) {
			t.Errorf("json.md has no row %s", row)
		}
	}
}
