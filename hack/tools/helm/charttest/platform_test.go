package charttest

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// node is what a platform means for the agent.
type node struct{ bin, conf, endpoint, exclude, runtime, selinux string }

// Where platforms keep what the agent needs, and how it gets there; what the values say wins. Mounts are at the flags' places: TestEveryTwoValuesRenderTogether.
func TestPlatforms(t *testing.T) {
	const k3s, bin, conf = "unix:///run/k3s/containerd/containerd.sock", "/opt/cni/bin", "/etc/cni/net.d"
	const k3sBin, k3sConf, microk8s = "/var/lib/rancher/k3s/data/cni", "/var/lib/rancher/k3s/agent/etc/cni/net.d", "/var/snap/microk8s/"
	for in, want := range map[string]node{
		"kubernetesDistribution: kubernetes":   {bin: bin, conf: conf, runtime: "auto"},
		"kubernetesDistribution: minikube":     {bin: bin, conf: conf, runtime: "auto"},
		"kubernetesDistribution: openshift":    {bin: "/var/lib/cni/bin", conf: "/etc/kubernetes/cni/net.d", exclude: "openshift-*", runtime: "crio", selinux: "spc_t"},
		"kubernetesDistribution: k3s":          {bin: k3sBin, conf: k3sConf, endpoint: k3s, runtime: "containerd"},
		"kubernetesDistribution: rke2":         {bin: bin, conf: conf, endpoint: k3s, runtime: "containerd"},
		"kubernetesDistribution: microk8s":     {microk8s + "current/opt/cni/bin", microk8s + "current/args/cni-network", "unix://" + microk8s + "common/run/containerd.sock", "", "containerd", ""},
		"kubernetesDistribution: gke":          {bin: "/home/kubernetes/bin", conf: conf, runtime: "containerd"},
		"kubernetesDistribution: eks":          {bin: bin, conf: conf, runtime: "containerd"},
		"kubernetesDistribution: aks":          {bin: bin, conf: conf, runtime: "containerd"},
		"kubernetesDistribution: kind":         {bin: bin, conf: conf, runtime: "containerd"},
		"kubernetesDistribution: talos":        {bin: bin, conf: conf, runtime: "containerd"},
		"kubernetesDistribution: bottlerocket": {bin: bin, conf: conf, runtime: "containerd", selinux: "control_t"},
		"kubernetesDistribution: openshift, hooks.cni.binDir: /usr/libexec/cni, hooks.cni.confDir: /run/crio/net.d, hooks.cni.excludeNamespaces: [a], agent.seLinuxOptions: {type: own_t}": {
			"/usr/libexec/cni", "/run/crio/net.d", "", "a", "crio", "own_t",
		},
		"kubernetesDistribution: k3s, runtime.endpoint: 'unix:///run/x/y.sock', hooks.cni.binDir: /x/bin": {bin: "/x/bin", conf: k3sConf, endpoint: "unix:///run/x/y.sock", runtime: "containerd"},
		"kubernetesDistribution: k3s, runtime.name: docker":                                               {bin: k3sBin, conf: k3sConf, runtime: "docker"}, // k3s server --docker: the platform's socket is not Docker's
	} {
		made := rendering(t, "{"+in+", hooks.cni.mode: install}")
		args := made.arguments(t)
		got := node{args["cni-bin-dir"], args["cni-conf-dir"], args["runtime-endpoint"], args["cni-exclude-namespaces"], args["runtime"], ""}
		if options := made.agent(t).Containers[0].SecurityContext.SELinuxOptions; options != nil {
			got.selinux = options.Type
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
