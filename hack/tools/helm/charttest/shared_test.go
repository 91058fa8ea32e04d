package charttest

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chartutil"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

const (
	sharedRoot    = "/run/istio-pod-network-controller/shared"
	sharedName    = name + "-shared"
	minimalShared = "{profile: edge, image: 'a/b:1', command: [/proxy, -f, /etc/sidecar/current/x]}"
)

func withShared(more string) string {
	return "sidecars: {enabled: true, shared: [" + strings.TrimSuffix(minimalShared, "}") + more + "}]}"
}

// sharedDaemonSet is that of the one shared proxy that values have.
func sharedDaemonSet(t *testing.T, values string) *appsv1.DaemonSet {
	t.Helper()
	var found []*appsv1.DaemonSet
	for _, doc := range documents(t, values) {
		if ds, ok := decode(t, doc).(*appsv1.DaemonSet); ok && !isAgent(ds) {
			found = append(found, ds)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d DaemonSets of shared proxies, want 1", len(found))
	}
	return found[0]
}

// A shared proxy listens in its pods' network namespaces, which takes one capability, and gets nothing else.
func TestWhatASharedProxyGets(t *testing.T) {
	ds := sharedDaemonSet(t, withShared(""))
	if ds.Name != sharedName+"-edge" || ds.Namespace != name {
		t.Errorf("the DaemonSet is %s/%s", ds.Namespace, ds.Name)
	}
	yes, no, root, group := true, false, int64(0), int64(1337)
	want := &corev1.SecurityContext{
		Privileged: &no, AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes, RunAsUser: &root, RunAsGroup: &group, RunAsNonRoot: &no,
		Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"SYS_ADMIN"}},
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	pod := ds.Spec.Template.Spec
	if diff := cmp.Diff(want, pod.Containers[0].SecurityContext); diff != "" || pod.Containers[0].Name != "proxy" || len(pod.Containers) != 1 {
		t.Errorf("containers %+v; security context (-want +got):\n%s", pod.Containers, diff)
	}
	if pod.HostNetwork || pod.HostPID || pod.HostIPC || pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken {
		t.Errorf("it has a token, or a namespace of the node: %+v", pod)
	}
	type mount struct {
		path, on string
		writable bool
		follows  bool
	}
	paths := map[string]string{}
	for _, volume := range pod.Volumes {
		if *volume.HostPath.Type != corev1.HostPathDirectoryOrCreate {
			t.Errorf("%s has to be there before the pod: %s", volume.HostPath.Path, *volume.HostPath.Type)
		}
		paths[volume.Name] = volume.HostPath.Path
	}
	var got []mount
	for _, m := range pod.Containers[0].VolumeMounts {
		got = append(got, mount{m.MountPath, paths[m.Name], !m.ReadOnly, m.MountPropagation != nil && *m.MountPropagation == corev1.MountPropagationHostToContainer})
	}
	wantMounts := []mount{
		{"/etc/sidecar", sharedRoot + "/edge/files", false, false},
		{"/run/sidecar", sharedRoot + "/edge/run", true, false},
		{"/var/run/netns", "/var/run/netns", false, true},
	}
	if diff := cmp.Diff(wantMounts, got, cmp.AllowUnexported(mount{})); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
}

// What a proxy leaves out is the agent's: it has to be on every node where the agent is.
func TestASharedProxyRunsWhereTheAgentDoes(t *testing.T) {
	const agents = "\nimagePullSecrets: [{name: r}]\nnodeSelector: {a: b}\ntolerations: [{key: k}]\naffinity: {podAffinity: {}}\npriorityClassName: p"
	for in, same := range map[string]bool{
		withShared("") + agents: true,
		withShared(", imagePullSecrets: [{name: s}], nodeSelector: {}, tolerations: [], priorityClassName: q") + agents: false,
	} {
		agent, proxy := daemonSet(t, in).Spec.Template.Spec, sharedDaemonSet(t, in).Spec.Template.Spec
		for what, diff := range map[string]string{
			"pull secrets": cmp.Diff(agent.ImagePullSecrets, proxy.ImagePullSecrets), "node selector": cmp.Diff(agent.NodeSelector, proxy.NodeSelector),
			"tolerations": cmp.Diff(agent.Tolerations, proxy.Tolerations), "priority class": cmp.Diff(agent.PriorityClassName, proxy.PriorityClassName),
		} {
			if (diff == "") != same {
				t.Errorf("%s: the agent's: %t, want %t", what, diff == "", same)
			}
		}
		if diff := cmp.Diff(agent.Affinity, proxy.Affinity); diff != "" {
			t.Errorf("affinity (-agent +proxy):\n%s", diff)
		}
	}
	taint := sharedDaemonSet(t, withShared("")+"\nstartupTaint: true\ntolerations: []").Spec.Template.Spec.Tolerations
	if len(taint) != 1 || taint[0].Key != "pod-network-controller.istio.io/not-ready" {
		t.Errorf("on a node that is still starting it tolerates %+v", taint)
	}
}

// Whoever looks for agents by their labels finds no proxy, and the other way round.
func TestSharedProxiesAreNotTakenForAgents(t *testing.T) {
	agent, proxy := daemonSet(t, withShared("")), sharedDaemonSet(t, withShared(""))
	for _, pair := range [][2]*appsv1.DaemonSet{{agent, proxy}, {proxy, agent}} {
		own, others := labels.SelectorFromSet(pair[0].Spec.Selector.MatchLabels), pair[1].Spec.Template.Labels
		if !own.Matches(labels.Set(pair[0].Spec.Template.Labels)) || own.Matches(labels.Set(others)) {
			t.Errorf("%s selects its own pods, but not %v: %s", pair[0].Name, others, own)
		}
	}
	if got := proxy.Spec.Template.Labels["pod-network-controller.istio.io/shared-proxy"]; got != "edge" {
		t.Errorf("the agent knows the proxy by %q", got)
	}
}

// A proxy that ends closes the connections of all its pods: what changes nothing of it must not replace it.
func TestAnUpgradeOfTheChartLeavesSharedProxies(t *testing.T) {
	template := func(version, values string) string {
		t.Helper()
		loaded := load(t)
		loaded.Metadata.Version, loaded.Metadata.AppVersion = version, version
		parsed, err := chartutil.ReadValues([]byte(values))
		if err != nil {
			t.Fatal(err)
		}
		client := action.NewInstall(&action.Configuration{Log: t.Logf})
		client.ClientOnly, client.DryRun, client.ReleaseName, client.Namespace = true, true, name, name
		client.KubeVersion = &chartutil.KubeVersion{Version: "v1.36.0", Major: "1", Minor: "36"}
		rel, err := client.RunWithContext(t.Context(), loaded, parsed)
		if err != nil {
			t.Fatal(err)
		}
		for doc := range strings.SplitSeq(rel.Manifest, "\n---\n") {
			if ds, ok := decode(t, doc).(*appsv1.DaemonSet); ok && !isAgent(ds) {
				return yamlTextOf(t, ds.Spec.Template)
			}
		}
		t.Fatal("no shared proxy")
		return ""
	}
	before := template("1.0.0", withShared(""))
	after := template("1.1.0", withShared("")+"\nlogLevel: debug\nimage: {tag: '7'}\npodLabels: {a: b}\npodAnnotations: {a: b}\nextraEnv: [{name: A, value: b}]")
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("the upgrade replaces the proxies' pods (-before +after):\n%s", diff)
	}
	if template("1.1.0", withShared(", args: [a]")) == before {
		t.Error("a change of the proxy changes nothing")
	}
}

func yamlTextOf(t *testing.T, object any) string {
	t.Helper()
	text, err := yaml.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A namespace whose critical pods are counted lets in those of the proxies.
func TestTheQuotaIsForSharedProxiesToo(t *testing.T) {
	for in, want := range map[string][]string{
		withShared(""): {"system-node-critical"}, withShared(", priorityClassName: mesh"): {"system-node-critical", "mesh"},
	} {
		for _, doc := range documents(t, in+"\nplatform: gke") {
			if quota, ok := decode(t, doc).(*corev1.ResourceQuota); ok {
				if diff := cmp.Diff(want, quota.Spec.ScopeSelector.MatchExpressions[0].Values); diff != "" {
					t.Errorf("%s: classes (-want +got):\n%s", in, diff)
				}
			}
		}
	}
}

// What OpenShift allows the proxies is what their pods have, and is given to their account alone, which has no other right.
func TestWhatOpenShiftAllowsSharedProxies(t *testing.T) {
	values := strings.Replace(withShared(""), "enabled: true", "enabled: true, untestedPlatform: true", 1) + "\nplatform: openshift"
	var allowed map[string]any
	for _, doc := range documents(t, values) {
		var object map[string]any
		if err := yaml.Unmarshal([]byte(doc), &object); err != nil {
			t.Fatal(err)
		}
		meta, _ := object["metadata"].(map[string]any)
		if object["kind"] == "SecurityContextConstraints" && meta["name"] == sharedName {
			allowed = object
		}
	}
	for key, want := range map[string]any{
		"allowedCapabilities": []any{"SYS_ADMIN"}, "volumes": []any{"hostPath"}, "allowHostDirVolumePlugin": true, "allowHostNetwork": false,
		"allowHostPID": false, "allowHostIPC": false, "allowHostPorts": false, "allowPrivilegedContainer": false, "allowPrivilegeEscalation": false,
		"readOnlyRootFilesystem": true,
	} {
		if diff := cmp.Diff(want, allowed[key]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", key, diff)
		}
	}
	pod := sharedDaemonSet(t, values).Spec.Template
	if pod.Annotations["openshift.io/required-scc"] != sharedName || pod.Spec.ServiceAccountName != sharedName || pod.Spec.Containers[0].SecurityContext.SELinuxOptions.Type != "spc_t" {
		t.Errorf("the pod asks for %v, as %s", pod.Annotations, pod.Spec.ServiceAccountName)
	}
	checkRightsOfShared(t, values)
}

// checkRightsOfShared wants one right for the proxies' account: to use the constraints of its name.
func checkRightsOfShared(t *testing.T, values string) {
	t.Helper()
	var bound []string
	for _, doc := range documents(t, values) {
		var ref rbacv1.RoleRef
		var subjects []rbacv1.Subject
		switch o := decode(t, doc).(type) {
		case *rbacv1.RoleBinding:
			ref, subjects = o.RoleRef, o.Subjects
		case *rbacv1.ClusterRoleBinding:
			ref, subjects = o.RoleRef, o.Subjects
		case *rbacv1.Role:
			want := []right{{"use", "security.openshift.io", "securitycontextconstraints", sharedName, true}}
			if o.Name == sharedName {
				if diff := cmp.Diff(want, flatten(o.Rules, true), cmp.AllowUnexported(right{})); diff != "" {
					t.Errorf("rights (-want +got):\n%s", diff)
				}
			}
		}
		for _, subject := range subjects {
			if subject.Name == sharedName {
				bound = append(bound, ref.Kind+" "+ref.Name)
			}
		}
	}
	if diff := cmp.Diff([]string{"Role " + sharedName}, bound); diff != "" {
		t.Errorf("roles of the account (-want +got):\n%s", diff)
	}
}
