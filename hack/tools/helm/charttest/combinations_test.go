package charttest

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/release"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"istio-pod-network-controller/hack/tools/helm/pairs"
)

// Every two alternatives of two values render together: valid objects, arguments that the agent takes. The values come from the schema, so a new
// one is tested without a line here.
func TestEveryTwoValuesRenderTogether(t *testing.T) {
	cover := newCover(t)
	rows, left := cover.Rows()
	t.Logf("%d rows", len(rows))
	for _, row := range rows {
		values := cover.Values(row, nil)
		rel, err := renderRow(t, values)
		if err != nil {
			t.Fatalf("render: %v\n%s", err, yamlOf(t, values))
		}
		for doc := range strings.SplitSeq(rel.Manifest, "\n---\n") {
			if ds, ok := decode(t, doc).(*appsv1.DaemonSet); ok {
				if fault := faultOf(t, ds); fault != "" {
					t.Errorf("%s with\n%s", fault, yamlOf(t, values))
				}
			}
		}
	}
	for _, pair := range left {
		row := pairs.Row{pair.One: pair.First, pair.Other: pair.Second}
		rule := cover.Refusal(row)
		if rule == nil {
			t.Errorf("%v: no row has it, and no rule refuses it", pair)
			continue
		}
		if _, err := renderRow(t, cover.Values(row, nil)); err == nil || !strings.Contains(err.Error(), rule.Says) {
			t.Errorf("%s\nrenders: %v, want %q", yamlOf(t, cover.Values(row, nil)), err, rule.Says)
		}
	}
}

// The rules of the search are those of the templates: each has values that the chart refuses with the words that it names.
func TestTheChartRefusesWhatTheRulesSay(t *testing.T) {
	for _, values := range []string{
		"{platform: gke, kubernetesDistribution: K3s}",
		"serviceAccount: {create: false}",
		"{sidecars: {enabled: true}, containerRuntime: docker}",
		"{sidecars: {enabled: true, tokenAudiences: [a]}, admission: {restrictAgent: false}}",
		"{sidecars: {istio: {enabled: true, image: a}}, admission: {restrictAgent: true}}",
		"{sidecars: {enabled: true, istio: {enabled: true}}, admission: {restrictAgent: true}}",
		"{sidecars: {enabled: true, istio: {enabled: true, image: a}}, admission: {restrictAgent: true}, containerRuntime: docker}",
		"{sidecars: {enabled: true, istio: {enabled: true, image: a}}}",
		"{sidecars: {enabled: true, istio: {enabled: true, image: a}}, admission: {restrictAgent: false}}",
		"{cni: install, cluster: openshift}",
		"healthAddr: 127.0.0.1:1",
		"{platform: openshift, sidecars: {enabled: true}}",
		"{nri: 'off', admission: {requiredPlugins: true}}",
		"{containerRuntime: docker, sidecars: {enabled: true, shared: [" + minimalShared + "]}}",
		"sidecars: {shared: [" + minimalShared + "]}",
		"sidecars: {enabled: true, shared: [" + minimalShared + ", " + minimalShared + "]}",
		"{failOpen: true, sidecars: {enabled: true, required: true}}",
		"{nri: 'off', cni: uninstall, sidecars: {enabled: true, required: true}}",
	} {
		_, err := renderRow(t, valuesMap(t, values))
		var named []string
		for _, rule := range pairs.Rules() {
			if err != nil && strings.Contains(err.Error(), rule.Says) {
				named = append(named, rule.Says)
			}
		}
		if len(named) != 1 {
			t.Errorf("%s: error %v has the words of the rules %q, want one", values, err, named)
		}
	}
}

// Nothing of another type gets through the schema.
func TestTheSchemaRefusesOtherTypes(t *testing.T) {
	cover := newCover(t)
	for _, p := range cover.Parameters() {
		if p.Path == pairs.ClusterPath {
			continue
		}
		for name, wrong := range map[string]any{"a list in a list": []any{[]any{"nonsense"}}, "a number": 0.5} {
			values := cover.Values(nil, nil)
			pairs.Set(values, p.Path, wrong)
			if _, err := renderRow(t, values); err == nil || !strings.Contains(err.Error(), "values don't meet the specifications of the schema") {
				t.Errorf("%s is %s: %v", p.Path, name, err)
			}
		}
	}
}

// renderRow renders values on the cluster that they name.
func renderRow(t *testing.T, values map[string]any) (*release.Release, error) {
	t.Helper()
	kinds := pairs.Clusters()[fmt.Sprint(values[pairs.ClusterPath])]
	delete(values, pairs.ClusterPath)
	return install(t, yamlOf(t, values), kinds...)
}

func yamlOf(t *testing.T, values map[string]any) string {
	t.Helper()
	text, err := yaml.Marshal(values)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func newCover(t *testing.T) *pairs.Cover {
	t.Helper()
	cover, err := pairs.Of(load(t))
	if err != nil {
		t.Fatal(err)
	}
	return cover
}

// faultOf says what the API server, or the agent, would not take of a DaemonSet.
func faultOf(t *testing.T, ds *appsv1.DaemonSet) string {
	t.Helper()
	pod := ds.Spec.Template.Spec
	volumes := map[string]bool{}
	for _, v := range pod.Volumes {
		if volumes[v.Name] {
			return "two volumes " + v.Name
		}
		volumes[v.Name] = true
	}
	for _, c := range append(append([]corev1.Container{}, pod.InitContainers...), pod.Containers...) {
		if fault := faultOfContainer(c, volumes); fault != "" {
			return fault
		}
	}
	if !isAgent(ds) {
		return ""
	}
	args := append([]string{}, pod.Containers[0].Args...)
	for i, arg := range args {
		if strings.HasPrefix(arg, "--node-name=") {
			args[i] = "--node-name="
		}
		if strings.HasPrefix(arg, "--pod-name=") {
			args[i] = "--pod-name=agent-1" // what the kubelet puts in
		}
	}
	output, err := exec.CommandContext(t.Context(), *binary, args...).CombinedOutput()
	if err == nil || strings.TrimSpace(string(output)) != "error: --node-name: required" {
		return fmt.Sprintf("the agent says %s", output)
	}
	return ""
}

// faultOfContainer says which mount or variable of a container the API server would not take.
func faultOfContainer(c corev1.Container, volumes map[string]bool) string {
	paths, names := map[string]bool{}, map[string]bool{}
	for _, m := range c.VolumeMounts {
		if !volumes[m.Name] || paths[m.MountPath] {
			return fmt.Sprintf("container %s mounts %s at %s: no such volume, or twice", c.Name, m.Name, m.MountPath)
		}
		paths[m.MountPath] = true
	}
	for _, e := range c.Env {
		if names[e.Name] {
			return fmt.Sprintf("container %s has the variable %s twice", c.Name, e.Name)
		}
		names[e.Name] = true
	}
	return ""
}
