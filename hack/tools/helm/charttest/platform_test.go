package charttest

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// node is what a platform means for the agent.
type node struct{ bin, conf, endpoint, exclude, runtime, selinux string }

// Where platforms keep what the agent needs, and how it gets there; what the values say wins.
func TestPlatforms(t *testing.T) {
	const k3s, bin, conf = "unix:///run/k3s/containerd/containerd.sock", "/opt/cni/bin", "/etc/cni/net.d"
	for in, want := range map[string]node{
		"platform: kubernetes": {bin: bin, conf: conf, runtime: "auto"},
		"platform: minikube":   {bin: bin, conf: conf, runtime: "auto"},
		"platform: openshift":  {bin: "/var/lib/cni/bin", conf: "/etc/kubernetes/cni/net.d", exclude: "openshift-*", runtime: "crio", selinux: "spc_t"},
		"platform: k3s": {
			bin: "/var/lib/rancher/k3s/data/cni", conf: "/var/lib/rancher/k3s/agent/etc/cni/net.d", endpoint: k3s, runtime: "containerd",
		},
		"platform: rke2": {bin: bin, conf: conf, endpoint: k3s, runtime: "containerd"},
		"platform: microk8s": {
			bin: "/var/snap/microk8s/current/opt/cni/bin", conf: "/var/snap/microk8s/current/args/cni-network",
			endpoint: "unix:///var/snap/microk8s/common/run/containerd.sock", runtime: "containerd",
		},
		"platform: gke":          {bin: "/home/kubernetes/bin", conf: conf, runtime: "containerd"},
		"platform: eks":          {bin: bin, conf: conf, runtime: "containerd"},
		"platform: aks":          {bin: bin, conf: conf, runtime: "containerd"},
		"platform: kind":         {bin: bin, conf: conf, runtime: "containerd"},
		"platform: talos":        {bin: bin, conf: conf, runtime: "containerd"},
		"platform: bottlerocket": {bin: bin, conf: conf, runtime: "containerd", selinux: "control_t"},
		"{platform: openshift, cniBinDir: /usr/libexec/cni, cniConfDir: /run/crio/net.d, cniExcludeNamespaces: [a], seLinuxOptions: {type: own_t}}": {
			bin: "/usr/libexec/cni", conf: "/run/crio/net.d", exclude: "a", runtime: "crio", selinux: "own_t",
		},
		"{platform: k3s, runtimeEndpoint: 'unix:///run/x/y.sock', cniBinDir: /var/lib/rancher/k3s/data/current/bin}": {
			bin: "/var/lib/rancher/k3s/data/current/bin", conf: "/var/lib/rancher/k3s/agent/etc/cni/net.d", endpoint: "unix:///run/x/y.sock", runtime: "containerd",
		},
		"{platform: k3s, containerRuntime: docker}": { // k3s server --docker: the platform's socket is not Docker's
			bin: "/var/lib/rancher/k3s/data/cni", conf: "/var/lib/rancher/k3s/agent/etc/cni/net.d", runtime: "docker",
		},
	} {
		t.Run(in, func(t *testing.T) {
			for _, mode := range []string{"install", "uninstall"} {
				values := "{" + strings.TrimSuffix(strings.TrimPrefix(in, "{"), "}") + ", cni: " + mode + "}"
				if diff := cmp.Diff(want, nodeOf(t, values), cmp.AllowUnexported(node{})); diff != "" {
					t.Errorf("%s (-want +got):\n%s", mode, diff)
				}
			}
		})
	}
}

// nodeOf reads from the rendered agent what its node is said to be. Mounts must agree with the flags.
func nodeOf(t *testing.T, values string) node {
	t.Helper()
	args, pod := arguments(t, values), daemonSet(t, values).Spec.Template.Spec
	found := node{
		bin: args["cni-bin-dir"], conf: args["cni-conf-dir"], endpoint: args["runtime-endpoint"], exclude: args["cni-exclude-namespaces"],
		runtime: args["runtime"],
	}
	for _, c := range append(append([]corev1.Container{}, pod.InitContainers...), pod.Containers...) {
		if options := c.SecurityContext.SELinuxOptions; options != nil {
			found.selinux = options.Type
		}
		for _, mount := range c.VolumeMounts {
			if mount.Name == "cni-bin" && mount.MountPath != found.bin || mount.Name == "cni-conf" && mount.MountPath != found.conf {
				t.Errorf("%s is mounted at %s", mount.Name, mount.MountPath)
			}
		}
	}
	return found
}

func TestPlatform_byItsNameOf2018_isTheSame(t *testing.T) {
	for _, old := range []string{"Kubernetes", "OpenShift", "K3s", "RKE2", "MicroK8s", "GKE", "Talos"} {
		before, err := install(t, "{cni: install, kubernetesDistribution: "+old+"}")
		if err != nil {
			t.Fatal(err)
		}
		after, err := install(t, "{cni: install, platform: "+strings.ToLower(old)+"}")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(after.Manifest, before.Manifest); diff != "" {
			t.Errorf("%s (-platform +kubernetesDistribution):\n%s", old, diff)
		}
		if _, err := install(t, "{platform: "+strings.ToLower(old)+", kubernetesDistribution: "+old+"}"); err != nil {
			t.Errorf("both say the same: %v", err)
		}
	}
	for in, want := range map[string]string{
		"{platform: gke, kubernetesDistribution: Kubernetes}":     "platform=gke and kubernetesDistribution=Kubernetes contradict each other",
		"{platform: openshift, kubernetesDistribution: MicroK8s}": "platform=openshift and kubernetesDistribution=MicroK8s contradict each other",
	} {
		if _, err := install(t, in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", in, err, want)
		}
	}
}

// GKE lets no pod of a critical class into a namespace without a quota for it, other than kube-system.
func TestTheQuota(t *testing.T) {
	for in, want := range map[string]bool{
		"{}": false, "platform: gke": true, "kubernetesDistribution: GKE": true, "platform: eks": false, "resourceQuota: {enabled: true}": true,
		"{platform: gke, resourceQuota: {enabled: false}}": false,
	} {
		found := false
		for _, doc := range documents(t, in) {
			quota, ok := decode(t, doc).(*corev1.ResourceQuota)
			found = found || ok
			if ok && !slices.Equal(quota.Spec.ScopeSelector.MatchExpressions[0].Values, []string{"system-node-critical"}) {
				t.Errorf("%s: the quota is for %v", in, quota.Spec.ScopeSelector.MatchExpressions)
			}
		}
		if found != want {
			t.Errorf("%s: there is a quota: %t, want %t", in, found, want)
		}
	}
}
