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
		"platform: kubernetes":   {bin: bin, conf: conf, runtime: "auto"},
		"platform: minikube":     {bin: bin, conf: conf, runtime: "auto"},
		"platform: openshift":    {bin: "/var/lib/cni/bin", conf: "/etc/kubernetes/cni/net.d", exclude: "openshift-*", runtime: "crio", selinux: "spc_t"},
		"platform: k3s":          {bin: k3sBin, conf: k3sConf, endpoint: k3s, runtime: "containerd"},
		"platform: rke2":         {bin: bin, conf: conf, endpoint: k3s, runtime: "containerd"},
		"platform: microk8s":     {microk8s + "current/opt/cni/bin", microk8s + "current/args/cni-network", "unix://" + microk8s + "common/run/containerd.sock", "", "containerd", ""},
		"platform: gke":          {bin: "/home/kubernetes/bin", conf: conf, runtime: "containerd"},
		"platform: eks":          {bin: bin, conf: conf, runtime: "containerd"},
		"platform: aks":          {bin: bin, conf: conf, runtime: "containerd"},
		"platform: kind":         {bin: bin, conf: conf, runtime: "containerd"},
		"platform: talos":        {bin: bin, conf: conf, runtime: "containerd"},
		"platform: bottlerocket": {bin: bin, conf: conf, runtime: "containerd", selinux: "control_t"},
		"platform: openshift, cniBinDir: /usr/libexec/cni, cniConfDir: /run/crio/net.d, cniExcludeNamespaces: [a], seLinuxOptions: {type: own_t}": {
			"/usr/libexec/cni", "/run/crio/net.d", "", "a", "crio", "own_t",
		},
		"platform: k3s, runtimeEndpoint: 'unix:///run/x/y.sock', cniBinDir: /x/bin": {bin: "/x/bin", conf: k3sConf, endpoint: "unix:///run/x/y.sock", runtime: "containerd"},
		"platform: k3s, containerRuntime: docker":                                   {bin: k3sBin, conf: k3sConf, runtime: "docker"}, // k3s server --docker: the platform's socket is not Docker's
	} {
		made := rendering(t, "{"+in+", cni: install}")
		args := made.arguments(t)
		got := node{args["cni-bin-dir"], args["cni-conf-dir"], args["runtime-endpoint"], args["cni-exclude-namespaces"], args["runtime"], ""}
		if options := made.agent(t).Containers[0].SecurityContext.SELinuxOptions; options != nil {
			got.selinux = options.Type
		}
		same(t, want, got, "%s", in)
	}
}

func TestPlatform_byItsNameOf2018_isTheSame(t *testing.T) {
	for _, old := range []string{"Kubernetes", "OpenShift", "K3s", "RKE2", "MicroK8s", "GKE", "Talos"} {
		platform := strings.ToLower(old)
		after := rendering(t, "{cni: install, platform: "+platform+"}")
		for _, values := range []string{"{cni: install, kubernetesDistribution: " + old + "}", "{cni: install, platform: " + platform + ", kubernetesDistribution: " + old + "}"} {
			same(t, after.Manifest, rendering(t, values).Manifest, "%s", values)
		}
	}
}

// GKE lets no pod of a critical class into a namespace without a quota for it, other than kube-system. Pods of shared proxies are counted, too.
func TestTheQuota(t *testing.T) {
	const critical = "system-node-critical"
	for in, want := range map[string][]string{
		"{}": nil, "platform: gke": {critical}, "kubernetesDistribution: GKE": {critical}, "platform: eks": nil, "resourceQuota: {enabled: true}": {critical},
		"{platform: gke, resourceQuota: {enabled: false}}": nil,
		"platform: gke\n" + withShared(""):                 {critical}, "platform: gke\n" + withShared(", priorityClassName: mesh"): {critical, "mesh"},
	} {
		var classes []string
		for _, quota := range all[*corev1.ResourceQuota](rendering(t, in).objects) {
			classes = append(classes, quota.Spec.ScopeSelector.MatchExpressions[0].Values...)
		}
		same(t, want, classes, "%s: classes of the quota", in)
	}
}
