package charttest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/hack/tools/helm/render"
)

// The directory of programs that run as root is writable for a call of a moment, never for the agent that stays. Neither container has a capability
// that it does not need.
func TestTheInitContainerOfTheChain(t *testing.T) {
	for in, want := range map[string]corev1.VolumeMount{
		"{hooks.cni.mode: install, hooks.cni.binDir: /usr/libexec/cni}":                                    {Name: "cni-bin", MountPath: "/usr/libexec/cni"},
		"{hooks.cni.mode: uninstall, hooks.cni.confDir: /run/cni, proxies: {enabled: true, secrets: [a]}}": {Name: "cni-conf", MountPath: "/run/cni"},
	} {
		made := rendering(t, in)
		agent, c, mode := made.agent(t).Containers[0], made.agent(t).InitContainers[0], made.arguments(t)["cni"]
		same(t, []corev1.VolumeMount{want}, c.VolumeMounts, "%s: mounts", in)
		like := corev1.Container{Image: agent.Image, ImagePullPolicy: agent.ImagePullPolicy, Resources: agent.Resources, SecurityContext: agent.SecurityContext.DeepCopy()}
		like.SecurityContext.Capabilities = &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}
		got := corev1.Container{Image: c.Image, ImagePullPolicy: c.ImagePullPolicy, Resources: c.Resources, SecurityContext: c.SecurityContext}
		same(t, like, got, "%s: container", in)
		if notes := made.daemonSet(t).Annotations; !strings.HasPrefix(in, "{hooks.cni.mode: "+mode) || notes["pod-network-controller.istio.io/cni"] != mode {
			t.Errorf("%s: --cni=%s, annotations %v", in, mode, notes)
		}
	}
}

// The program accepts the chart's arguments for init containers, and does what they say.
func TestTheInitContainersWork(t *testing.T) {
	root := t.TempDir()
	bin, conf, source := filepath.Join(root, "bin"), filepath.Join(root, "net.d"), filepath.Join(root, "plugin")
	list := filepath.Join(conf, "10-a.conflist")
	const plain = `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"a"}]}`
	for _, dir := range []string{bin, conf} {
		must(t, os.Mkdir(dir, 0o755))
	}
	for file, text := range map[string]string{source: "#!program", list: strings.Replace(plain, `}]`, `},{"type":"istio-pod-network-cni"}]`, 1)} {
		must(t, os.WriteFile(file, []byte(text), 0o644))
	}
	for _, in := range []string{"{hooks.cni.mode: install, hooks.cni.binDir: " + bin + "}", "{hooks.cni.mode: uninstall, hooks.cni.confDir: " + conf + "}"} {
		args := rendering(t, in).agent(t).InitContainers[0].Args
		if args[1] == "install" {
			args = append(args, "--cni-plugin-source="+source) // the image has it
		}
		if output, err := exec.CommandContext(t.Context(), *binary, args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, output)
		}
	}
	if got := read(t, filepath.Join(bin, "istio-pod-network-cni")); got != "#!program" {
		t.Errorf("the binary is %q", got)
	}
	if got := read(t, list); got != plain {
		t.Errorf("the configuration is %s", got)
	}
}

// A plugin in a directory that the runtime does not use protects nothing. A cluster that is too old is refused, a vendor's version of a new one is not.
func TestClustersThatCannotWorkAreRefused(t *testing.T) {
	for name, tc := range map[string]struct{ in, version, kind, want string }{
		"OpenShift with Kubernetes' configurations": {in: "{hooks.cni.mode: install, kubernetesDistribution: openshift, hooks.cni.confDir: /etc/cni/net.d}", want: "/etc/kubernetes/cni/net.d"},
		"OpenShift with Kubernetes' programs":       {in: "{hooks.cni.mode: install, kubernetesDistribution: openshift, hooks.cni.binDir: /opt/cni/bin}", want: "/var/lib/cni/bin"},
		"a cluster that is OpenShift":               {in: "{}", kind: openshift, want: "set kubernetesDistribution=openshift"},
		"a cluster that is k3s":                     {in: "hooks.cni.mode: install", version: "v1.36.0+k3s1", want: "kubernetesDistribution=k3s"},
		"a cluster on GKE":                          {in: "hooks.cni.mode: install", version: "v1.36.0-gke.100", want: "kubernetesDistribution=gke"},
		"MicroK8s, by its socket":                   {in: "{hooks.cni.mode: install, runtime.endpoint: 'unix:///var/snap/microk8s/common/run/containerd.sock'}", want: "kubernetesDistribution=microk8s"},
		"one whose directories are named":           {in: "{hooks.cni.mode: install, hooks.cni.binDir: /x/bin, hooks.cni.confDir: /x/conf}", version: "v1.36.0+k3s1"},
		"a Kubernetes that is too old":              {in: "{}", version: "v1.27.16", want: "which is incompatible with Kubernetes"},
		"the oldest one, of a vendor":               {in: "{}", version: "v1.28.0-gke.1286000"},
		"kubelets that serve no pods":               {in: "pods.from: kubelet", version: "v1.36.5", want: "pods.from=kubelet needs Kubernetes 1.37: the cluster has v1.36.5 (`helm template` knows no cluster: --kube-version)"},
		"no reading as the node":                    {in: "pods.readAsNode: true", version: "v1.35.4", want: "pods.readAsNode=true needs Kubernetes 1.36"},
		"reading as the node, of a vendor":          {in: "pods.readAsNode: true", version: "v1.36.0-gke.100"},
		"no field for AppArmor":                     {in: "agent.appArmorProfile: {type: RuntimeDefault}", version: "v1.29.9", want: "agent.appArmorProfile needs Kubernetes 1.30"},
		"one without the chain":                     {in: "{}", version: "v1.36.0+k3s1"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := installAs(t, render.Request{Chart: chartDir, Values: parse(t, tc.in), Version: tc.version, Kinds: []string{tc.kind}})
			if (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}
