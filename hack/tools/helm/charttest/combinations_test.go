package charttest

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// choices are values that interact in the templates, each with all that it may be.
func choices() [][]string {
	return [][]string{
		{
			"kubernetesDistribution: Kubernetes", "kubernetesDistribution: OpenShift", "kubernetesDistribution: K3s", "kubernetesDistribution: RKE2",
			"kubernetesDistribution: MicroK8s", "kubernetesDistribution: GKE", "kubernetesDistribution: Talos",
		},
		{"containerRuntime: auto", "containerRuntime: containerd", "containerRuntime: crio", "containerRuntime: docker"},
		{"nri: auto", "nri: required", "nri: off"},
		{"cni: off", "cni: install", "cni: uninstall"},
		{"backend: auto", "backend: nftables", "backend: iptables"},
		{"select: annotation", "select: injected", "select: either"},
		{"ipv6: capture", "ipv6: direct"},
		{"interceptionMode: REDIRECT", "interceptionMode: TPROXY", "interceptionMode: NONE"},
		{"failOpen: true", "failOpen: false"},
		{"startupTaint: true", "startupTaint: false"},
		{"tolerations: []", "tolerations: null", "tolerations: [{operator: Exists}]"},
		{"processFallback: true", "processFallback: false"},
		{"resources: {}", "resources: {limits: {memory: 1Gi}}"},
		{"sidecars: {enabled: true}", "sidecars: {enabled: false}", "sidecars: {enabled: true, secrets: [a, b.c]}"},
		{
			"admission: {enabled: true, waitContainer: true}", "admission: {enabled: true, requiredPlugins: true, readinessGate: false, restrictAgent: true}",
			"admission: {enabled: false, restrictAgent: false}", "admission: {waitContainer: true, waitTimeout: 1m30s, restrictAgent: true}",
		},
	}
}

// Values that are valid one by one render whole, valid objects together, and arguments that the agent takes.
func TestCombinationsRender(t *testing.T) {
	kinds := [][]string{
		nil,
		{"admissionregistration.k8s.io/v1/MutatingAdmissionPolicy", "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"},
	}
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same ones every time
	for range 100 {
		picked := make([]string, 0, len(choices()))
		for _, of := range choices() {
			picked = append(picked, of[random.IntN(len(of))])
		}
		values := strings.Join(picked, "\n")
		if sidecarsOn(t, values) { // which Docker refuses: sidecars_test.go
			values = strings.Replace(values, "containerRuntime: docker", "containerRuntime: auto", 1)
		}
		rel, err := install(t, values, kinds[random.IntN(2)]...)
		if err != nil {
			t.Fatalf("render: %v\n%s", err, values)
		}
		for doc := range strings.SplitSeq(rel.Manifest, "\n---\n") {
			if ds, ok := decode(t, doc).(*appsv1.DaemonSet); ok {
				if fault := faultOf(t, ds); fault != "" {
					t.Errorf("%s with\n%s", fault, values)
				}
			}
		}
	}
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
		paths := map[string]bool{}
		for _, m := range c.VolumeMounts {
			if !volumes[m.Name] || paths[m.MountPath] {
				return fmt.Sprintf("container %s mounts %s at %s: no such volume, or twice", c.Name, m.Name, m.MountPath)
			}
			paths[m.MountPath] = true
		}
	}
	args := append([]string{}, pod.Containers[0].Args...)
	for i, arg := range args {
		if strings.HasPrefix(arg, "--node-name=") {
			args[i] = "--node-name="
		}
	}
	output, err := exec.CommandContext(t.Context(), *binary, args...).CombinedOutput()
	if err == nil || strings.TrimSpace(string(output)) != "error: --node-name: required" {
		return fmt.Sprintf("the agent says %s", output)
	}
	return ""
}
