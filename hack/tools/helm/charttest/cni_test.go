package charttest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The directory of programs that run as root is writable for a call of a moment, never for the agent that stays.
func TestTheInitContainerOfTheChain(t *testing.T) {
	for name, tc := range map[string]struct {
		in        string
		wantMount corev1.VolumeMount
		wantCNI   string
	}{
		"install":   {"{cni: install, cniBinDir: /usr/libexec/cni}", corev1.VolumeMount{Name: "cni-bin", MountPath: "/usr/libexec/cni"}, "install"},
		"uninstall": {"{cni: uninstall, cniConfDir: /run/cni}", corev1.VolumeMount{Name: "cni-conf", MountPath: "/run/cni"}, "uninstall"},
	} {
		t.Run(name, func(t *testing.T) {
			ds := daemonSet(t, tc.in)
			c, agent := ds.Spec.Template.Spec.InitContainers[0], ds.Spec.Template.Spec.Containers[0]
			if diff := cmp.Diff([]corev1.VolumeMount{tc.wantMount}, c.VolumeMounts); diff != "" {
				t.Errorf("mounts (-want +got):\n%s", diff)
			}
			wantOfAgentButRights(t, c, agent)
			if got := arguments(t, tc.in)["cni"]; got != tc.wantCNI || ds.Annotations["pod-network-controller.istio.io/cni"] != name {
				t.Errorf("--cni=%s, annotations %v", got, ds.Annotations)
			}
			for _, m := range agent.VolumeMounts {
				if m.Name == "cni-bin" && !m.ReadOnly {
					t.Errorf("the agent may write to %s", m.MountPath)
				}
			}
		})
	}
}

// wantOfAgentButRights wants a container that is made as the agent's is, but has no capability.
func wantOfAgentButRights(t *testing.T, c, agent corev1.Container) {
	t.Helper()
	want := agent.SecurityContext.DeepCopy()
	want.Capabilities = &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}
	if diff := cmp.Diff(want, c.SecurityContext); diff != "" {
		t.Errorf("security context (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(agent.Resources, c.Resources); diff != "" || c.Image != agent.Image || c.ImagePullPolicy != agent.ImagePullPolicy {
		t.Errorf("image %s, resources (-agent +got):\n%s", c.Image, diff)
	}
}

// The program accepts the chart's arguments for init containers, and does what they say.
func TestTheInitContainersWork(t *testing.T) {
	root := t.TempDir()
	bin, conf, source := filepath.Join(root, "bin"), filepath.Join(root, "net.d"), filepath.Join(root, "plugin")
	list := filepath.Join(conf, "10-a.conflist")
	const plain = `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"a"}]}`
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(conf, 0o755); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{
		source: "#!program", list: `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"a"},{"type":"istio-pod-network-cni"}]}`,
	} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, in := range []string{"{cni: install, cniBinDir: " + bin + ", cniPluginSource: " + source + "}", "{cni: uninstall, cniConfDir: " + conf + "}"} {
		args := daemonSet(t, in).Spec.Template.Spec.InitContainers[0].Args
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

// An agent asks for its own DaemonSet, and for nothing else, while it keeps an entry that would outlive it.
func TestTheAgentMayAskForItsDaemonSet(t *testing.T) {
	for in, wantName := range map[string]string{
		"{cni: install}": name,
		"{cni: install, fullnameOverride: other}": "other",
		"{cni: 'off'}":     "",
		"{cni: uninstall}": "",
		"{cni: install, select: either, nri: auto}": name,
	} {
		t.Run(in, func(t *testing.T) {
			ds := daemonSet(t, in)
			if got := arguments(t, in)["daemonset"]; got != wantName {
				t.Errorf("--daemonset=%s, want %q", got, wantName)
			}
			var want []any
			if wantName != "" {
				want = rights(ds)
			}
			if diff := cmp.Diff(want, namespaced(t, in), cmpopts.IgnoreFields(metav1.ObjectMeta{}, "Labels")); diff != "" {
				t.Errorf("roles and bindings (-want +got):\n%s", diff)
			}
			if grace := *ds.Spec.Template.Spec.TerminationGracePeriodSeconds; grace < 15 { // the questions take 5 s at most
				t.Errorf("the agent has %d s to end in", grace)
			}
		})
	}
}

// rights are those that let the agents of a DaemonSet ask for it.
func rights(ds *appsv1.DaemonSet) []any {
	meta := metav1.ObjectMeta{Name: ds.Name + "-daemonset", Namespace: ds.Namespace}
	return []any{
		&rbacv1.Role{
			TypeMeta: metav1.TypeMeta{Kind: "Role", APIVersion: "rbac.authorization.k8s.io/v1"}, ObjectMeta: meta,
			Rules: []rbacv1.PolicyRule{{
				Verbs: []string{"get"}, APIGroups: []string{"apps"}, Resources: []string{"daemonsets"}, ResourceNames: []string{ds.Name},
			}},
		},
		&rbacv1.RoleBinding{
			TypeMeta: metav1.TypeMeta{Kind: "RoleBinding", APIVersion: "rbac.authorization.k8s.io/v1"}, ObjectMeta: meta,
			RoleRef:  rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: meta.Name},
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: ds.Spec.Template.Spec.ServiceAccountName, Namespace: ds.Namespace}},
		},
	}
}

// namespaced are the roles and bindings of a namespace.
func namespaced(t *testing.T, values string) []any {
	t.Helper()
	var found []any
	for _, doc := range documents(t, values) {
		switch o := decode(t, doc).(type) {
		case *rbacv1.Role:
			if !forDevelopers(o.Name) {
				found = append(found, o)
			}
		case *rbacv1.RoleBinding:
			found = append(found, o)
		}
	}
	return found
}

// A plugin in a directory that the runtime does not use protects nothing.
func TestDirectoriesThatCannotWorkAreRefused(t *testing.T) {
	const openshift = "security.openshift.io/v1"
	for name, tc := range map[string]struct{ in, version, kind, want string }{
		"OpenShift with Kubernetes' configurations": {in: "{cni: install, platform: openshift, cniConfDir: /etc/cni/net.d}", want: "/etc/kubernetes/cni/net.d"},
		"OpenShift with Kubernetes' programs":       {in: "{cni: install, platform: openshift, cniBinDir: /opt/cni/bin}", want: "/var/lib/cni/bin"},
		"a cluster that is OpenShift":               {in: "cni: install", kind: openshift, want: "platform=openshift"},
		"a cluster that is k3s":                     {in: "cni: install", version: "v1.36.0+k3s1", want: "platform=k3s"},
		"a cluster on GKE":                          {in: "cni: install", version: "v1.36.0-gke.100", want: "platform=gke"},
		"MicroK8s, by its socket":                   {in: "{cni: install, runtimeEndpoint: 'unix:///var/snap/microk8s/common/run/containerd.sock'}", want: "platform=microk8s"},
		"one whose directories are named":           {in: "{cni: install, cniBinDir: /x/bin, cniConfDir: /x/conf}", version: "v1.36.0+k3s1"},
		"one without the chain":                     {in: "{}", version: "v1.36.0+k3s1"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := installOn(t, tc.version, tc.in, tc.kind)
			if (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}
