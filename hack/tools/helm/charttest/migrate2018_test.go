package charttest

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/strvals"
)

// linesOf2018 are the commands in the first column of the table "Line by line".
func linesOf2018(t *testing.T, page string) (lines []string) {
	t.Helper()
	_, table, _ := strings.Cut(page, "\n## Line by line\n")
	table, _, _ = strings.Cut(table, "\n## ")
	for row := range strings.Lines(table) {
		then, _, isRow := strings.Cut(row, " | ") // a pipe of a command is written \|
		for _, match := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(then, -1) {
			if isRow {
				lines = append(lines, match[1])
			}
		}
	}
	return lines
}

// sets are a command's arguments to --set.
func sets(command string) (found []string) {
	for _, match := range regexp.MustCompile(`--set ([^\s"]+)`).FindAllStringSubmatch(command, -1) {
		found = append(found, match[1])
	}
	return found
}

// A line that renders the chart is that of step 2 today, with the line's own values behind.
func TestLinesOf2018_ofTheChart_renderWhatTheyAskFor(t *testing.T) {
	page := read(t, docsDir+"/migrate-2018-controller.md")
	today := regexp.MustCompile(`(?m)^helm template (?:\\\n|[^\n|])*`).FindString(page)
	if !strings.HasPrefix(today, "helm template "+name+` "$CHART" -n `+name+" --no-hooks ") {
		t.Fatalf("the line of today is %q", today)
	}
	today = strings.ReplaceAll(today, `"$IMAGE"`, "registry.example.com/mesh/agent")
	want := map[string][]string{
		"":                                 {"kind: DaemonSet", "--runtime=auto"},
		"containerRuntime=crio":            {"kind: DaemonSet", "--runtime=crio"},
		"kubernetesDistribution=OpenShift": {"kind: DaemonSet", "--runtime=crio", "kind: SecurityContextConstraints"},
	}
	seen := map[string]bool{}
	for _, line := range linesOf2018(t, page) {
		if !strings.Contains(line, "helm template") && !strings.Contains(line, "--set") {
			continue
		}
		own := strings.Join(sets(line), ",")
		words, known := want[own]
		if !known {
			t.Errorf("%s: no test knows what it asks for", line)
		}
		seen[own] = true
		values, err := strvals.Parse(strings.Join(append(sets(today), sets(line)...), ","))
		must(t, err)
		manifest := rendering(t, yamlOf(t, values)).Manifest
		expectWords(t, manifest, true, words...)
		expectWords(t, manifest, false, "anyuid")
	}
	if len(seen) != len(want) {
		t.Errorf("the page has lines with %v, want %v", seen, want)
	}
}

// Keys that a line of kubectl or oc sets mean today what they meant.
func TestLinesOf2018_ofKubectl_setKeysThatAreRead(t *testing.T) {
	readAs := map[string]string{
		"istio-pod-network-controller/initialize=true": "| `istio-pod-network-controller/initialize` | namespace, pod | `true`;",
		"istio-injection=enabled":                      "\n    istio-injection: enabled",
	}
	where := read(t, docsDir+"/reference/annotations.md") + read(t, configDir+"/samples/namespace.yaml")
	seen := map[string]bool{}
	for _, line := range linesOf2018(t, read(t, docsDir+"/migrate-2018-controller.md")) {
		words := strings.Fields(line)
		if !slices.Contains([]string{"kubectl", "oc"}, words[0]) || !slices.Contains([]string{"annotate", "label"}, words[1]) {
			continue
		}
		for _, word := range words {
			if strings.Contains(word, "=") && (readAs[word] == "" || !strings.Contains(where, readAs[word])) {
				t.Errorf("%s: nothing says that %s is read", line, word)
			}
			seen[word] = strings.Contains(word, "=")
		}
	}
	for word := range readAs {
		if !seen[word] {
			t.Errorf("the page has no line with %s", word)
		}
	}
}

// What has to be deleted first, as docs say, has the names of what the chart makes.
func TestObjectsOf2018_haveTheNamesOfTheCharts(t *testing.T) {
	page := read(t, docsDir+"/migrate-2018-controller.md")
	manifest := rendering(t, "platform: openshift").Manifest
	for kind, command := range map[string]string{
		"DaemonSet":                  "delete daemonset,serviceaccount " + name,
		"ServiceAccount":             "delete daemonset,serviceaccount " + name,
		"ClusterRole":                "delete clusterrole,clusterrolebinding " + name,
		"ClusterRoleBinding":         "delete clusterrole,clusterrolebinding " + name,
		"SecurityContextConstraints": "`oc delete scc " + name + "`",
	} {
		made := regexp.MustCompile(`(?m)^kind: ` + kind + `\nmetadata:\n  name: ` + name + `$`)
		if !made.MatchString(manifest) || !strings.Contains(page, command) {
			t.Errorf("%s: made under that name: %t; the page has %q: %t", kind, made.MatchString(manifest), command, strings.Contains(page, command))
		}
	}
}
