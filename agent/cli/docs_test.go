package cli

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"istio-pod-network-controller/internal/cmdline"
)

const root = "../.."

// pages are what people read, by path below the root.
func pages(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/reference/*.md", "chart/*/README.md", "hack/*/README.md"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d found, %v", pattern, len(files), err)
		}
		for _, file := range files {
			found[strings.TrimPrefix(file, root+"/")] = text(t, file)
		}
	}
	return found
}

func text(t *testing.T, file string) string {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// sources are the product's programs, without tests.
func sources(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, dir := range []string{"agent", "controllers", "internal", "iptables", "runtime", "sidecars"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") && !strings.Contains(path, "/refdocs/") {
				all.WriteString(text(t, path))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all.String()
}

// every returns the first group of each match, sorted and without duplicates.
func every(pattern, in string) []string {
	found := map[string]bool{}
	for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(in, -1) {
		found[match[1]] = true
	}
	return slices.Sorted(maps.Keys(found))
}

func TestLinksOfTheDocsExist(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#\s:]*)(#[^)\s]+)?\)`)
	all := pages(t)
	for page, in := range all {
		for _, match := range link.FindAllStringSubmatch(in, -1) {
			target := filepath.Join(filepath.Dir(page), match[1])
			if match[1] == "" {
				target = page
			}
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				t.Errorf("%s: link to %s: %v", page, match[1], err)
			} else if match[2] != "" && !slices.Contains(anchors(all[target]), match[2]) {
				t.Errorf("%s: %s has no heading %s", page, target, match[2])
			}
		}
	}
}

// anchors are the links to a page's headings, as GitHub makes them.
func anchors(page string) []string {
	var found []string
	for _, heading := range every(`(?m)^#+ (.*)$`, page) {
		plain := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(heading), "")
		found = append(found, "#"+strings.ReplaceAll(plain, " ", "-"))
	}
	return found
}

func TestEveryPageIsInTheTableOfContents(t *testing.T) {
	all := pages(t)
	contents := all["docs/README.md"]
	for page := range all {
		in, found := strings.CutPrefix(page, "docs/")
		if found && in != "README.md" && !strings.Contains(contents, "]("+in+")") {
			t.Errorf("docs/README.md has no link to %s", in)
		}
	}
}

// A metric that a page names is one that the agent has. docs/reference/metrics.md is made from the code.
func TestMetricsOfTheDocsExist(t *testing.T) {
	const name = `istio_pod_network_controller_([a-z_]*[a-z])`
	all := pages(t)
	there := every(name, all["docs/reference/metrics.md"])
	for page, in := range all {
		for _, metric := range every(name, in) {
			series := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(metric, "")
			if !slices.Contains(there, metric) && !slices.Contains(there, series) {
				t.Errorf("%s: the agent has no metric %s", page, metric)
			}
		}
	}
	if len(there) == 0 {
		t.Error("docs/reference/metrics.md has no metric")
	}
}

// What an administrator greps for has one name in code and docs.
func TestNamesInTheDocsAreThoseOfTheCode(t *testing.T) {
	code, read := sources(t), ""
	for _, page := range pages(t) {
		read += page
	}
	hooks := strings.Join(strings.Fields(text(t, filepath.Join(root, "docs/choosing-a-hook.md"))), " ") // a sentence may run over the end of a line
	for name, tc := range map[string]struct{ code, docs []string }{
		"parts of readiness": {
			code: every(`part\{name: "([a-z]+)", check: [A-Za-z.]+(?:\}|, note)`, code),
			docs: every("`([a-z]+)`", every(`/readyz. lists its parts \(([^)]*)\)`, hooks)[0]),
		},
		"outcomes of a call by NRI": {
			code: every(`(?m)^\s+[A-Z][A-Za-z]+\s+Outcome = "([a-z-]+)"`, code),
			docs: every("`([a-z-]+)`", every("`result`: (.*?)\\|", hooks)[0]),
		},
	} {
		slices.Sort(tc.docs)
		if diff := cmp.Diff(tc.code, tc.docs); diff != "" || len(tc.code) == 0 {
			t.Errorf("%s (-code +docs):\n%s", name, diff)
		}
	}
	for _, kind := range every("`(CNIChain[A-Za-z]+)`", read) {
		if !strings.Contains(code, `"`+strings.TrimPrefix(kind, "CNIChain")+`"`) {
			t.Errorf("no event %s in the code", kind)
		}
	}
}

// The subcommands and flags of our programs' commands in the docs exist.
func TestCommandsOfTheDocsExist(t *testing.T) {
	var names []string
	for _, cmd := range Commands().Commands() {
		names = append(names, cmd.Name())
	}
	commands := regexp.MustCompile(`(?m)(?:(?:^ {4}|build/|: )istio-pod-network-controller|kubectl pod-network) ((?:` + strings.Join(names, "|") + `)\b[^\n#|` + "`" + `]*)`)
	seen := 0
	for page, in := range pages(t) {
		for _, match := range commands.FindAllStringSubmatch(in, -1) {
			seen++
			cmd, rest, err := Commands().Find(strings.Fields(match[1]))
			if err == nil && cmd.HasSubCommands() && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
				err = cmdline.NoSubcommand(cmd, rest)
			}
			if err != nil {
				t.Errorf("%s: %s: %v", page, match[1], err)
				continue
			}
			for _, fault := range unknownFlags(cmd, rest) {
				t.Errorf("%s: %s: no flag --%s", page, match[1], fault)
			}
		}
	}
	if seen == 0 {
		t.Error("no command was found")
	}
}

func unknownFlags(cmd *cobra.Command, args []string) (unknown []string) {
	for _, arg := range args {
		if arg == "--" {
			break // what follows is another program's
		}
		name, isFlag := strings.CutPrefix(arg, "--")
		name, _, _ = strings.Cut(name, "=")
		if isFlag && cmd.Flags().Lookup(name) == nil && cmd.InheritedFlags().Lookup(name) == nil {
			unknown = append(unknown, name)
		}
	}
	return unknown
}

// renders are commands of pages that render the chart, each with its continued lines.
var renders = regexp.MustCompile(`(?m)^[^|\n]*helm template (?:\\\n|[^\x60\n])*`)

func TestRenders_commandOfTwoLines_hasBoth(t *testing.T) {
	for page, want := range map[string][]string{
		"helm template NAME chart/x --no-hooks\nkubectl get pods":                 {"helm template NAME chart/x --no-hooks"},
		"    helm template NAME \\\n      chart/x --no-hooks\nThen":               {"    helm template NAME \\\n      chart/x --no-hooks"},
		"helm template N chart/x \\\n  --set a=b \\\n  --no-hooks | kubectl\n":    {"helm template N chart/x \\\n  --set a=b \\\n  --no-hooks | kubectl"},
		"type `helm template N chart/x` with `--no-hooks`":                        {"type `helm template N chart/x"},
		"`helm template` knows no cluster":                                        nil,
		"| `helm template N chart/x` | of 2018 |":                                 nil,
		"helm template A chart/x\n--no-hooks\nhelm template B chart/y --no-hooks": {"helm template A chart/x", "helm template B chart/y --no-hooks"},
	} {
		if diff := cmp.Diff(want, renders.FindAllString(page, -1)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", page, diff)
		}
	}
}

// The pod of `helm test` is a hook: applied with all else, it would run once and stay.
func TestRenderedChartsOfTheDocsHaveNoHooks(t *testing.T) {
	found := 0
	for name, page := range pages(t) {
		for _, command := range renders.FindAllString(page, -1) {
			if !strings.Contains(command, "/") && !strings.Contains(command, "$CHART") {
				continue // prose about the command
			}
			found++
			if !strings.Contains(command, "--no-hooks") && !strings.Contains(command, "--skip-tests") {
				t.Errorf("%s: neither --no-hooks nor --skip-tests in: %s", name, command)
			}
		}
	}
	if found < 2 {
		t.Errorf("found %d commands: the pages have two at least", found)
	}
}

// One name for one command: what asks a cluster is the plugin's. The agent's program is named where one is on a node.
func TestPages_commandForACluster_isThePlugins(t *testing.T) {
	programs := regexp.MustCompile(`(?:^|[^\w/-])istio-pod-network-controller (?:status|check|inspect|explain|connectivity test|bugreport)\b[^\n]*`)
	for page, in := range pages(t) {
		if strings.HasPrefix(page, "docs/reference/") {
			continue
		}
		for _, command := range programs.FindAllString(in, -1) {
			if !strings.Contains(command, "--node") && !strings.Contains(command, "--local") {
				t.Errorf("%s: want kubectl pod-network in: %s", page, command)
			}
		}
	}
}
