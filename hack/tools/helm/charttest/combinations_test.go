package charttest

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/hack/tools/helm/pairs"
	"istio-pod-network-controller/hack/tools/helm/render"
)

// Every two alternatives of two values render together: valid objects, an agent that asks for no more than it needs, and arguments that it takes.
// The values come from the schema, so a new one is tested without a line here.
func TestEveryTwoValuesRenderTogether(t *testing.T) {
	cover := newCover(t)
	rows, left := cover.Rows()
	t.Logf("%d rows, %d pairs that are refused", len(rows), len(left))
	for _, row := range rows {
		values := cover.Values(row)
		release, err := renderRow(t, values)
		if err != nil {
			t.Fatalf("render: %v\n%s", err, yamlOf(t, values))
		}
		made := decoded(t, release)
		faults := faultsOfAgent(t, made.daemonSet(t).Spec, values)
		for _, ds := range all[*appsv1.DaemonSet](made.objects) {
			faults = append(faults, faultsOfPod(ds.Spec.Template.Spec)...)
		}
		if len(faults) > 0 {
			t.Errorf("%s, with\n%s", strings.Join(faults, "\n"), yamlOf(t, values))
		}
	}
	for _, pair := range left {
		row := pairs.Row{pair.One: pair.First, pair.Other: pair.Second}
		rule := cover.Refusal(row)
		if rule == nil {
			t.Errorf("%v: no row has it, and no rule refuses it", pair)
			continue
		}
		if _, err := renderRow(t, cover.Values(row)); err == nil || !strings.Contains(err.Error(), rule.Says) {
			t.Errorf("%s\nrenders: %v, want %q", yamlOf(t, cover.Values(row)), err, rule.Says)
		}
	}
}

// The rules of the search are those of the templates: each has values that the chart refuses with the words that it names.
func TestTheChartRefusesWhatTheRulesSay(t *testing.T) {
	var cases []map[string]any
	table(t, "rules.yaml", &cases)
	for _, values := range cases {
		_, err := renderRow(t, parse(t, yamlOf(t, values)))
		var named []string
		for _, rule := range pairs.Rules() {
			if err != nil && strings.Contains(err.Error(), rule.Says) {
				named = append(named, rule.Says)
			}
		}
		if len(named) != 1 {
			t.Errorf("%v: error %v has the words of the rules %q, want one", values, err, named)
		}
	}
}

// renderRow renders values on the cluster that they name.
func renderRow(t *testing.T, values map[string]any) (render.Release, error) {
	t.Helper()
	kinds := pairs.Clusters()[fmt.Sprint(values[pairs.ClusterPath])]
	delete(values, pairs.ClusterPath)
	return install(t, yamlOf(t, values), kinds...)
}

func newCover(t *testing.T) *pairs.Cover {
	t.Helper()
	cover, err := pairs.Of([]byte(read(t, filepath.Join(chartDir, "values.schema.json"))), parse(t, read(t, filepath.Join(chartDir, "values.yaml"))))
	must(t, err)
	return cover
}

// faultsOfPod says which volume, mount or variable of a pod the API server would not take.
func faultsOfPod(pod corev1.PodSpec) (faults []string) {
	volumes := map[string]bool{}
	for _, v := range pod.Volumes {
		if volumes[v.Name] {
			faults = append(faults, "two volumes "+v.Name)
		}
		volumes[v.Name] = true
	}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		paths, names := map[string]bool{}, map[string]bool{}
		for _, m := range c.VolumeMounts {
			if !volumes[m.Name] || paths[m.MountPath] {
				faults = append(faults, fmt.Sprintf("container %s mounts %s at %s: no such volume, or twice", c.Name, m.Name, m.MountPath))
			}
			paths[m.MountPath] = true
		}
		for _, e := range c.Env {
			if names[e.Name] {
				faults = append(faults, fmt.Sprintf("container %s has the variable %s twice", c.Name, e.Name))
			}
			names[e.Name] = true
		}
	}
	return faults
}

// faultsOfAgent says what the agent would not take, what it is given beyond its needs, and what keeps two agents from running on one node.
func faultsOfAgent(t *testing.T, ds appsv1.DaemonSetSpec, values map[string]any) (faults []string) {
	t.Helper()
	pod := ds.Template.Spec
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	// Values that the kubelet puts in. With no node named the agent must have nothing else to say.
	args := append(slices.Clone(pod.Containers[0].Args), "--node-name=", "--pod-name=agent-1")
	output, err := exec.CommandContext(t.Context(), *binary, args...).CombinedOutput()
	if err == nil || strings.TrimSpace(string(output)) != "error: --node-name: required" {
		fault("the agent says %s", output)
	}
	if diff := cmp.Diff(wantSecurity(values), pod.Containers[0].SecurityContext, ignoreProfiles()); diff != "" {
		fault("security context (-want +got):\n%s", diff)
	}
	if want := at(values, "runtime", "processFallback") == true || sidecarsIn(values); pod.HostPID != want || pod.HostIPC || !pod.HostNetwork {
		fault("hostPID %t, want %t; hostIPC %t, hostNetwork %t", pod.HostPID, want, pod.HostIPC, pod.HostNetwork)
	}
	wantInit := 0
	if mode := at(values, "hooks", "cni", "mode"); mode == "install" || mode == "uninstall" {
		wantInit = 1
	}
	if len(pod.Containers) != 1 || len(pod.InitContainers) != wantInit || len(pod.Containers[0].Ports) > 0 {
		fault("%d containers, %d init containers, want %d; ports, of which one pod of a node can have each: %v", len(pod.Containers), len(pod.InitContainers), wantInit, pod.Containers[0].Ports)
	}
	return append(append(faults, faultsOfMounts(pod)...), faultsOfProbes(ds)...)
}
