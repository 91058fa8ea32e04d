package charttest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"istio-pod-network-controller/hack/tools/helm/render"
)

const (
	sharedRoot    = "/run/istio-pod-network-controller/shared"
	sharedName    = name + "-shared"
	minimalShared = "{profile: edge, image: 'a/b:1', command: [/proxy, -f, /etc/sidecar/current/x]}"
)

func withShared(more string) string {
	return "proxies: {enabled: true, shared: [" + strings.TrimSuffix(minimalShared, "}") + more + "}]}"
}

// shared is the DaemonSet of the one shared proxy.
func (r rendered) shared(t *testing.T) *appsv1.DaemonSet {
	t.Helper()
	sets := slices.DeleteFunc(all[*appsv1.DaemonSet](r.objects), isAgent)
	if len(sets) != 1 {
		t.Fatalf("%d DaemonSets of shared proxies, want 1", len(sets))
	}
	return sets[0]
}

// A shared proxy listens in its pods' network namespaces, which takes one capability, and gets nothing else.
func TestWhatASharedProxyGets(t *testing.T) {
	ds := rendering(t, withShared("")).shared(t)
	if ds.Name != sharedName+"-edge" || ds.Namespace != name {
		t.Errorf("the DaemonSet is %s/%s", ds.Namespace, ds.Name)
	}
	want, group := wantSecurity(nil), int64(1337)
	want.RunAsGroup, want.Capabilities.Add = &group, []corev1.Capability{"SYS_ADMIN"}
	pod := ds.Spec.Template.Spec
	if diff := cmp.Diff(want, pod.Containers[0].SecurityContext); diff != "" || pod.Containers[0].Name != "proxy" || len(pod.Containers) != 1 {
		t.Errorf("containers %+v; security context (-want +got):\n%s", pod.Containers, diff)
	}
	if pod.HostNetwork || pod.HostPID || pod.HostIPC || pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken {
		t.Errorf("it has a token, or a namespace of the node: %+v", pod)
	}
	paths, into, made := map[string]string{}, corev1.MountPropagationHostToContainer, corev1.HostPathDirectoryOrCreate
	for _, volume := range pod.Volumes {
		if *volume.HostPath.Type != made {
			t.Errorf("%s has to be there before the pod: %s", volume.HostPath.Path, *volume.HostPath.Type)
		}
		paths[volume.Name] = volume.HostPath.Path
	}
	wantMounts := []corev1.VolumeMount{
		{Name: sharedRoot + "/edge/files", MountPath: "/etc/sidecar", ReadOnly: true},
		{Name: sharedRoot + "/edge/run", MountPath: "/run/sidecar"},
		{Name: "/var/run/netns", MountPath: "/var/run/netns", ReadOnly: true, MountPropagation: &into},
	}
	for i := range pod.Containers[0].VolumeMounts {
		m := &pod.Containers[0].VolumeMounts[i]
		m.Name = paths[m.Name]
	}
	same(t, wantMounts, pod.Containers[0].VolumeMounts, "mounts, by the node's paths")
}

// What a proxy leaves out is the agent's: it has to be on every node where the agent is.
func TestASharedProxyRunsWhereTheAgentDoes(t *testing.T) {
	const agents = "\nimage.pullSecrets: [{name: r}]\nagent.nodeSelector: {a: b}\nagent.tolerations: [{key: k}]\nagent.affinity: {podAffinity: {}}\nagent.priorityClassName: p"
	place := func(pod corev1.PodSpec) []string {
		return []string{yamlOf(t, pod.ImagePullSecrets), yamlOf(t, pod.NodeSelector), yamlOf(t, pod.Tolerations), pod.PriorityClassName}
	}
	for in, alike := range map[string]bool{
		withShared("") + agents: true,
		withShared("") + "\nhooks.startupTaint.enabled: true\nagent.tolerations: []":                                    true,
		withShared(", imagePullSecrets: [{name: s}], nodeSelector: {}, tolerations: [], priorityClassName: q") + agents: false,
	} {
		made := rendering(t, in)
		agent, proxy := made.agent(t), made.shared(t).Spec.Template.Spec
		for i, of := range place(proxy) {
			if (of == place(agent)[i]) != alike {
				t.Errorf("%s: the proxy has %s, the agent %s", in, of, place(agent)[i])
			}
		}
		same(t, agent.Affinity, proxy.Affinity, "affinity")
	}
}

// Whoever looks for agents by their labels finds no proxy, and the other way round.
func TestSharedProxiesAreNotTakenForAgents(t *testing.T) {
	made := rendering(t, withShared(""))
	agent, proxy := made.daemonSet(t), made.shared(t)
	for _, pair := range [][2]*appsv1.DaemonSet{{agent, proxy}, {proxy, agent}} {
		own, others := labels.SelectorFromSet(pair[0].Spec.Selector.MatchLabels), pair[1].Spec.Template.Labels
		if !own.Matches(labels.Set(pair[0].Spec.Template.Labels)) || own.Matches(labels.Set(others)) {
			t.Errorf("%s selects its own pods, but not %v: %s", pair[0].Name, others, own)
		}
	}
	if got := proxy.Spec.Template.Labels[apiGroup+"/shared-proxy"]; got != "edge" {
		t.Errorf("the agent knows the proxy by %q", got)
	}
}

// A proxy that ends closes the connections of all its pods: what changes nothing of it must not replace it.
func TestAnUpgradeOfTheChartLeavesSharedProxies(t *testing.T) {
	dir := t.TempDir()
	must(t, os.CopyFS(dir, os.DirFS(chartDir)))
	template := func(version, values string) string {
		t.Helper()
		text := strings.NewReplacer("\nversion: 0.1.0\n", "\nversion: "+version+"\n", `appVersion: "0.1.0"`, "appVersion: "+version).Replace(read(t, chartDir+"/Chart.yaml"))
		must(t, os.WriteFile(filepath.Join(dir, "Chart.yaml"), []byte(text), 0o600))
		release, err := installAs(t, render.Request{Chart: dir, Values: parse(t, values)})
		must(t, err)
		return yamlOf(t, decoded(t, release).shared(t).Spec.Template)
	}
	before := template("1.0.0", withShared(""))
	same(t, before, template("2.0.0", withShared("")+"\nagent.logLevel: debug\nimage: {tag: '7'}\nagent.podLabels: {a: b}\nagent.podAnnotations: {a: b}\nagent.extraEnv: [{name: A, value: b}]"), "another version, other values of the agent's")
	if template("1.0.0", withShared(", args: [a]")) == before {
		t.Error("a change of the proxy changes nothing")
	}
}

// What OpenShift allows the proxies is what their pods have, and is given to their account alone, which has no other right.
func TestWhatOpenShiftAllowsSharedProxies(t *testing.T) {
	made := rendering(t, withShared("")+"\nkubernetesDistribution: openshift")
	allowed := made.custom(t, scc, sharedName)
	for key, want := range map[string]any{
		"allowedCapabilities": []any{"SYS_ADMIN"}, "volumes": []any{"hostPath"}, "allowHostDirVolumePlugin": true, "allowHostNetwork": false,
		"allowHostPID": false, "allowHostIPC": false, "allowHostPorts": false, "allowPrivilegedContainer": false, "allowPrivilegeEscalation": false,
		"readOnlyRootFilesystem": true,
	} {
		same(t, want, allowed[key], "%s", key)
	}
	pod := made.shared(t).Spec.Template
	if pod.Annotations["openshift.io/required-scc"] != sharedName || pod.Spec.ServiceAccountName != sharedName || pod.Spec.Containers[0].SecurityContext.SELinuxOptions.Type != "spc_t" {
		t.Errorf("the pod asks for %v, as %s", pod.Annotations, pod.Spec.ServiceAccountName)
	}
	want := []right{{"use", "security.openshift.io", "securitycontextconstraints", sharedName, name}}
	same(t, want, granted(t, made.objects)[name+"/"+sharedName], "rights")
}
