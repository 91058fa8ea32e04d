package charttest

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// node is what a platform means for the agent.
type node struct{ Bin, Conf, Endpoint, Exclude, Runtime, SELinux string }

// Where platforms keep what the agent needs, and how it gets there; what the values say wins. Mounts are at the flags' places: TestEveryTwoValuesRenderTogether.
func TestPlatforms(t *testing.T) {
	var platforms map[string]node
	table(t, "platforms.yaml", &platforms)
	for in, want := range platforms {
		made := rendering(t, "{hooks.cni.mode: install, kubernetesDistribution: "+in+"}")
		args := made.arguments(t)
		got := node{args["cni-bin-dir"], args["cni-conf-dir"], args["runtime-endpoint"], args["cni-exclude-namespaces"], args["runtime"], ""}
		if options := made.agent(t).Containers[0].SecurityContext.SELinuxOptions; options != nil {
			got.SELinux = options.Type
		}
		same(t, want, got, "%s", in)
	}
}

func TestDistribution_inAnyCase_isTheSame(t *testing.T) {
	for _, capitals := range []string{"Kubernetes", "OpenShift", "K3s", "RKE2", "MicroK8s", "GKE", "Talos"} {
		after := rendering(t, "{hooks.cni.mode: install, kubernetesDistribution: "+strings.ToLower(capitals)+"}")
		same(t, after.Manifest, rendering(t, "{hooks.cni.mode: install, kubernetesDistribution: "+capitals+"}").Manifest, "%s", capitals)
	}
	refuses(t, "kubernetesDistribution: minishift", "kubernetesDistribution=minishift: it is one of aks, bottlerocket, eks, gke, k3s, kind, kubernetes, microk8s, minikube, openshift, rke2, talos")
}

// GKE lets no pod of a critical class into a namespace without a quota for it, other than kube-system. Pods of shared proxies are counted, too.
func TestTheQuota(t *testing.T) {
	const critical = "system-node-critical"
	for in, want := range map[string][]string{
		"{}": nil, "kubernetesDistribution: gke": {critical}, "kubernetesDistribution: GKE": {critical}, "kubernetesDistribution: eks": nil, "agent.priorityQuota: 100": {critical},
		"{kubernetesDistribution: gke, agent.priorityQuota: false}": nil,
		"kubernetesDistribution: gke\n" + withShared(""):            {critical}, "kubernetesDistribution: gke\n" + withShared(", priorityClassName: mesh"): {critical, "mesh"},
	} {
		var classes []string
		for _, quota := range all[*corev1.ResourceQuota](rendering(t, in).objects) {
			classes = append(classes, quota.Spec.ScopeSelector.MatchExpressions[0].Values...)
		}
		same(t, want, classes, "%s: classes of the quota", in)
	}
}
