package charttest

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"

	"istio-pod-network-controller/hack/tools/helm/render"
)

// umbrella is a chart that depends on this one, under a key of its values.
func umbrella(t *testing.T, key string, more ...string) string {
	t.Helper()
	dir := t.TempDir()
	dependency := "{name: " + name + ", version: '>=0.0.0'" + strings.Join(more, "") + "}"
	must(t, os.WriteFile(filepath.Join(dir, "Chart.yaml"), []byte("{apiVersion: v2, name: platform, version: 1.0.0, dependencies: ["+dependency+"]}"), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "values.yaml"), []byte(key+": {enabled: true}\n"), 0o600))
	must(t, os.CopyFS(filepath.Join(dir, "charts", name), os.DirFS(chartDir)))
	return dir
}

// As a dependency of another chart it renders what it renders alone. An alias changes the names of objects, and nothing by which people, commands,
// selectors and alerts find the agents.
func TestDependency(t *testing.T) {
	const values = "{hooks.cni.mode: install, proxies: {enabled: true, shared: [" + minimalShared + "]}, monitoring.prometheusRule.enabled: true}"
	alone := rendering(t, values)
	for key, more := range map[string]string{name: "", "agent": ", alias: agent"} {
		given := parse(t, values)
		given["enabled"] = true
		chart := umbrella(t, key, more, ", condition: "+key+".enabled")
		inside, err := installAs(t, render.Request{Chart: chart, Values: map[string]any{key: given, "global": map[string]any{"a": "b"}}})
		must(t, err)
		text := strings.NewReplacer("# Source: platform/charts/"+key, "# Source: "+name).Replace(inside.Manifest)
		if key == name {
			same(t, alone.Manifest, text, "as a dependency")
		}
		was, is := identities(t, alone), identities(t, decoded(t, inside))
		same(t, was, is, "%s: labels and selectors", key)
		expectWords(t, inside.Manifest, key == name, `daemonset=~"(.+-)?`+name+`"`)
		expectWords(t, inside.Manifest, key != name, `daemonset="`+name+`-agent"`)
	}
}

// identities are how many objects have the same labels and selectors.
func identities(t *testing.T, made rendered) map[string]int {
	t.Helper()
	found := map[string]int{}
	for _, doc := range made.Documents() {
		labels, _ := at(parse(t, doc), "metadata", "labels").(map[string]any)
		found[yamlOf(t, labels)]++
	}
	for _, ds := range all[*appsv1.DaemonSet](made.objects) {
		found[yamlOf(t, ds.Spec.Selector.MatchLabels)]++
		found[yamlOf(t, ds.Spec.Template.Labels)]++
	}
	return found
}

// A condition that is false leaves nothing of the chart, its definitions included; one that is true is no value that the schema refuses.
func TestDependency_condition_decides(t *testing.T) {
	for _, key := range []string{name, "agent"} {
		alias := ""
		if key != name {
			alias = ", alias: " + key
		}
		chart := umbrella(t, key, alias, ", condition: "+key+".enabled")
		for _, on := range []bool{true, false} {
			made, err := installAs(t, render.Request{Chart: chart, Values: map[string]any{key: map[string]any{"enabled": on}}})
			must(t, err)
			if got := len(made.Documents()) > 0; got != on {
				t.Errorf("%s.enabled=%t: %d objects", key, on, len(made.Documents()))
			}
			for version, engine := range render.Engines() {
				crds, err := engine.Definitions(chart, map[string]any{key: map[string]any{"enabled": on}})
				must(t, err)
				if (len(crds) == 2) != on {
					t.Errorf("%s, %s.enabled=%t: Helm makes the definitions %v", version, key, on, slices.Sorted(maps.Keys(crds)))
				}
			}
		}
	}
}
