package charttest

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
)

// wantSecurity is the agent's security context for values.
func wantSecurity(values map[string]any) *corev1.SecurityContext {
	add := []corev1.Capability{"SYS_ADMIN", "NET_ADMIN"}
	if at(values, "redirection", "backend") == "iptables" {
		add = append(add, "NET_RAW")
	}
	if at(values, "runtime", "processFallback") == true {
		add = append(add, "SYS_PTRACE")
	}
	if sidecarsIn(values) {
		add = append(add, "KILL", "CHOWN", "DAC_OVERRIDE", "SETUID", "SETGID")
	}
	yes, no, root := true, false, int64(0)
	return &corev1.SecurityContext{
		Privileged: &no, AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes, RunAsUser: &root, RunAsNonRoot: &no,
		Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: add},
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
}

// ignoreProfiles leaves out of a comparison what values state themselves.
func ignoreProfiles() cmp.Option {
	return cmpopts.IgnoreFields(corev1.SecurityContext{}, "SELinuxOptions", "AppArmorProfile")
}

// faultsOfMounts compares what the agent sees of the node: the same paths, none too wide, few of them writable, and mounts that reach it.
func faultsOfMounts(pod corev1.PodSpec) (faults []string) {
	node, unused := map[string]string{}, map[string]bool{}
	for _, v := range pod.Volumes {
		unused[v.Name] = true
		if v.HostPath != nil {
			node[v.Name] = v.HostPath.Path
		}
	}
	for _, c := range pod.InitContainers { // what they may do: TestTheInitContainerOfTheChain
		for _, m := range c.VolumeMounts {
			delete(unused, m.Name)
		}
	}
	for _, m := range pod.Containers[0].VolumeMounts {
		delete(unused, m.Name)
		if node[m.Name] == "" {
			continue
		}
		writable := slices.Contains([]string{"cni-conf", "cni-socket", "kept", "sidecars", "shared", "profiles", "pod-logs"}, m.Name)
		if node[m.Name] != m.MountPath || m.ReadOnly == writable || slices.Contains([]string{"/", "/run", "/var/run", "/var", "/proc"}, m.MountPath) {
			faults = append(faults, fmt.Sprintf("%s: the node's %s is mounted at %s, read-only: %t", m.Name, node[m.Name], m.MountPath, m.ReadOnly))
		}
		// Without propagation a namespace made later is an empty file, and a container's unmounted root stays in use.
		reaches := m.MountPropagation != nil && *m.MountPropagation == corev1.MountPropagationHostToContainer
		if socket := path.Ext(m.MountPath) == ".sock"; !socket && !writable && !reaches {
			faults = append(faults, fmt.Sprintf("%s: mounts of the node do not reach the agent", m.MountPath))
		}
	}
	for volume, is := range unused {
		if is {
			faults = append(faults, "nothing mounts "+volume)
		}
	}
	return faults
}

// faultsOfProbes wants two agents of a node to have an address each: a socket in a directory of the pod's own, or one after the other.
func faultsOfProbes(ds appsv1.DaemonSetSpec) (faults []string) {
	agent, own := ds.Template.Spec.Containers[0], map[string]bool{}
	for _, m := range agent.VolumeMounts {
		own[m.MountPath] = !m.ReadOnly && slices.ContainsFunc(ds.Template.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name && v.EmptyDir != nil })
	}
	rolling := ds.UpdateStrategy.RollingUpdate
	alone := ds.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType || rolling == nil || rolling.MaxSurge.String() == "0"
	for name, probe := range map[string]*corev1.Probe{"/healthz": agent.LivenessProbe, "/readyz": agent.ReadinessProbe, "/startz": agent.StartupProbe} {
		switch {
		case probe.Exec != nil && probe.Exec.Command[len(probe.Exec.Command)-1] == name && own[path.Dir(probe.Exec.Command[2])]:
		case probe.HTTPGet != nil && probe.HTTPGet.Path == name && alone:
		default:
			faults = append(faults, fmt.Sprintf("%s is asked by %+v", name, probe.ProbeHandler))
		}
	}
	return faults
}

// OpenShift's type is not among those of Kubernetes: its fields without a default are compared here.
func TestSecurityContextConstraintsAdmitThePod(t *testing.T) {
	const sidecars = "proxies: {enabled: true"
	for in, volumes := range map[string][]any{
		"{kubernetesDistribution: openshift}":                                           nil,
		"{kubernetesDistribution: openshift, runtime.processFallback: true}":            nil,
		"{kubernetesDistribution: openshift, " + sidecars + "}}":                        nil,
		"{kubernetesDistribution: openshift, " + sidecars + ", secrets: [a]}}":          {"secret"},
		"{kubernetesDistribution: openshift, monitoring: {secure: true, tlsSecret: a}}": {"secret"},
	} {
		made, want := rendering(t, in), wantSecurity(parse(t, in))
		var capabilities []any
		for _, c := range want.Capabilities.Add {
			capabilities = append(capabilities, string(c))
		}
		allowed, pod := made.custom(t, scc, name), made.agent(t)
		for key, value := range map[string]any{
			"allowHostDirVolumePlugin": true, "allowHostIPC": false, "allowHostNetwork": true, "allowHostPID": pod.HostPID,
			"allowHostPorts": false, "allowPrivilegedContainer": false, "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
			"allowedCapabilities": capabilities, "requiredDropCapabilities": []any{}, "volumes": append([]any{"emptyDir", "hostPath", "projected"}, volumes...),
		} {
			same(t, value, allowed[key], "%s: %s", in, key)
		}
		if options := pod.Containers[0].SecurityContext.SELinuxOptions; options == nil || options.Type != "spc_t" || options.Level != "s0" {
			t.Errorf("%s: SELinux options %+v, want type spc_t and no categories", in, options)
		}
	}
	if rendering(t, "{}").custom(t, scc, name) != nil {
		t.Error("on Kubernetes there are SecurityContextConstraints")
	}
}

// A selector cannot be changed, so what people set may not get into it. Post-renderers refuse a map that has a key twice: decode does, too.
func TestLabels(t *testing.T) {
	const own = "{enabled: true, labels: {team: metrics}}"
	labelled := rendering(t, "{commonLabels: {team: mesh}, hooks.cni.mode: install, hooks.startupTaint.enabled: true, kubernetesDistribution: openshift, agent.priorityQuota: 100, inspect: {enabled: true}, "+
		"monitoring: {secure: true, serviceMonitor: "+own+", prometheusRule: "+own+", dashboard: {enabled: true, metadata: {labels: {team: metrics}}}}, "+
		"proxies: {enabled: true, tokenAudiences: [a], shared: ["+minimalShared+"]}, admission: {enabled: true, restrictAgent: true, allowOptOut: false}}")
	teams := map[string]int{}
	for _, o := range labelled.objects {
		object, err := meta.Accessor(o)
		must(t, err)
		if object.GetLabels()["app.kubernetes.io/instance"] != name {
			t.Errorf("%s has the labels %v", object.GetName(), object.GetLabels())
		}
		teams[object.GetLabels()["team"]]++
	}
	if teams["metrics"] != 3 || len(teams) != 2 {
		t.Errorf("objects by their label: %v, want 3 with their own", teams)
	}
	plain, pods := rendering(t, "{}").daemonSet(t), rendering(t, "{commonLabels: {a: common, b: common}, agent.podLabels: {b: pod, c: pod}}").daemonSet(t)
	if diff := cmp.Diff(plain.Spec.Selector, pods.Spec.Selector); diff != "" {
		t.Errorf("the selector changed (-without +with labels):\n%s", diff)
	}
	// No version is among them: agents restart for a new program only.
	want := map[string]string{"app.kubernetes.io/name": name, "app.kubernetes.io/instance": name, "a": "common", "b": "pod", "c": "pod"}
	same(t, want, pods.Spec.Template.Labels, "labels of the pods")
}

// Every place that means the account has its name, above all the policies that bound it.
func TestTheAccount(t *testing.T) {
	const every = "hooks.cni.mode: install, hooks.startupTaint.enabled: true, kubernetesDistribution: openshift, proxies: {enabled: true, tokenAudiences: [a]}, admission: {restrictAgent: true}"
	const user = "system:serviceaccount:" + name + ":"
	users := strings.Count(rendering(t, "{"+every+"}").Manifest, user+name+`"`)
	made := rendering(t, "{"+every+", serviceAccount: {name: own, annotations: {a: b}}}")
	if got := strings.Count(made.Manifest, user+`own"`); got != users || users < 5 || strings.Contains(made.Manifest, user+name) {
		t.Errorf("%d policies name the account own, want %d", got, users)
	}
	if account := one[*corev1.ServiceAccount](t, made.objects); account.Name != "own" || account.Annotations["a"] != "b" || made.agent(t).ServiceAccountName != "own" {
		t.Errorf("the account is %s with %v, the agent runs as %s", account.Name, account.Annotations, made.agent(t).ServiceAccountName)
	}
	if not := rendering(t, "serviceAccount: {create: false, name: own}"); len(all[*corev1.ServiceAccount](not.objects)) > 0 || not.agent(t).ServiceAccountName != "own" {
		t.Errorf("an account is made, or the agent runs as %s", not.agent(t).ServiceAccountName)
	}
	rights := granted(t, made.objects) // whoever is given rights is the account
	if maps.DeleteFunc(rights, func(of string, _ []right) bool { return !strings.Contains(of, "/") || of == name+"/own" }); len(rights) > 0 {
		t.Errorf("others have rights: %v", rights)
	}
}

// An agent that does not tolerate the startup taint would never come to take it away.
func TestTheAgentToleratesTheStartupTaint(t *testing.T) {
	const taint = "{key: pod-network-controller.istio.io/not-ready, operator: Exists}"
	for in, want := range map[string]string{
		"hooks.startupTaint.enabled: true":                                                                "[{operator: Exists}]",
		"{hooks.startupTaint.enabled: true, agent.tolerations: [{key: a}]}":                               "[{key: a}, " + taint + "]",
		"{hooks.startupTaint.enabled: true, agent.tolerations: [{operator: Exists, effect: NoSchedule}]}": "[{operator: Exists, effect: NoSchedule}, " + taint + "]",
		"{hooks.startupTaint.enabled: true, agent.tolerations: []}":                                       "[" + taint + "]",
		"{hooks.startupTaint.enabled: true, hooks.startupTaint.key: a.b/c, agent.tolerations: []}":        "[{key: a.b/c, operator: Exists}]",
		"agent.tolerations: [{key: a}]":                                                                   "[{key: a}]",
		"agent.tolerations: null":                                                                         "[]",
	} {
		got := map[string]any{"list": rendering(t, in).agent(t).Tolerations}
		same(t, yamlOf(t, parse(t, "list: "+want)), strings.ReplaceAll(yamlOf(t, got), "null", "[]"), "%s: tolerations", in)
	}
}

func TestProbes(t *testing.T) {
	for path, probe := range map[string]*corev1.Probe{"/readyz": rendering(t, "{}").agent(t).Containers[0].ReadinessProbe, "/healthz": rendering(t, "{}").agent(t).Containers[0].LivenessProbe} {
		if got, want := strings.Join(probe.Exec.Command, " "), "/istio-pod-network-probe --socket /run/istio-pod-network-health/health.sock "+path; got != want {
			t.Errorf("asked by %q, want %q", got, want)
		}
	}
}

// Some have the runtime's NRI socket beside its own: one mount is enough for both.
func TestNRISocketBesideTheRuntimes_isMountedOnce(t *testing.T) {
	for in, want := range map[string]string{
		"{kubernetesDistribution: eks, hooks.nri.socket: /run/containerd/nri.sock}":                                           "/run/containerd",
		"{kubernetesDistribution: k3s, hooks.nri.socket: /run/k3s/containerd/nri.sock}":                                       "/run/k3s/containerd",
		"{hooks.nri.socket: /var/run/crio/nri.sock}":                                                                          "/var/run/crio",
		"{runtime.endpoint: 'unix:///run/k0s/containerd.sock', hooks.nri.socket: /run/k0s/nri.sock, hooks.cni.mode: install}": "/run/k0s",
	} {
		made := rendering(t, in)
		same(t, []string(nil), append(faultsOfPod(made.agent(t)), faultsOfMounts(made.agent(t))...), "%s: faults", in)
		if socket := made.arguments(t)["nri-socket"]; path.Dir(socket) != want || !slices.ContainsFunc(made.agent(t).Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == want && m.ReadOnly }) {
			t.Errorf("%s: --nri-socket=%s, mounts %+v", in, socket, made.agent(t).Containers[0].VolumeMounts)
		}
	}
}

// One of the two defaults of the API server is 0.
func TestUpdateStrategy_withoutNumbers_isTaken(t *testing.T) {
	rendering(t, "agent.updateStrategy: {rollingUpdate: {maxSurge: null, maxUnavailable: null}}")
}
