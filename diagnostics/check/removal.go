package check

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/diagnostics/cluster"
	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/podreport"
	"istio-pod-network-controller/internal/printable"
)

// removals are the questions about what an uninstall has left.
func removals() []check {
	return []check{
		{"removal", "removal-release", []source{sourceDaemonSets}, after, removedRelease},
		{"removal", "removal-objects", []source{sourcePolicies, sourceRoles}, after, removedObjects},
		{"removal", "removal-definitions", []source{sourceAPIs, sourceProxies}, after, removedDefinitions},
		{"removal", "removal-namespace", []source{sourceNamespaces}, after, removedNamespace},
		{"removal", "removal-pods", []source{sourcePods}, after, removedPods},
		{"removal", "removal-gates", []source{sourcePods}, after, removedGates},
		{"removal", "removal-taints", []source{sourceNodes}, after, removedTaints},
		{"removal", "removal-nodes", []source{sourceEvents, sourcePods}, after, removedNodes},
	}
}

// removed asks what is left. While the release is installed, nothing is. What could not be read may be left, and fails, too.
func (f *Facts) removed() []Result {
	out := f.asked(removals(), false)
	if f.ours() != nil {
		out = out[:1]
	}
	for _, u := range f.unread() {
		u.Level = Fail
		out = append(out, u)
	}
	return out
}

// readRoles reads the chart's objects that belong to no namespace, but for its policies.
func readRoles(ctx context.Context, g Gatherer, f *Facts) error {
	o, api := metav1.ListOptions{LabelSelector: agentstatus.Label}, g.Client.RbacV1()
	roles, err := cluster.All(ctx, api.ClusterRoles().List, o, func(r *rbacv1.ClusterRole) (string, bool) { return "clusterrole/" + r.Name, true })
	if err != nil {
		return err
	}
	bindings, err := cluster.All(ctx, api.ClusterRoleBindings().List, o, func(b *rbacv1.ClusterRoleBinding) (string, bool) { return "clusterrolebinding/" + b.Name, true })
	f.objects = slices.Concat(f.objects, roles, bindings)
	return err
}

func removedRelease(f *Facts) finding {
	if d := f.ours(); d != nil {
		release := cmp.Or(d.Annotations["meta.helm.sh/release-name"], d.Labels["app.kubernetes.io/instance"], "RELEASE")
		return failing("the release is installed: DaemonSet "+named(d), "helm uninstall "+release+" -n "+d.Namespace+" --wait; docs/removal.md says what to do before")
	}
	left := listed(f.DaemonSets, func(d appsv1.DaemonSet) bool { return agentstatus.Labelled(d.Labels) }, func(d appsv1.DaemonSet) string { return named(&d) })
	return remaining(left, "no release is installed, but with the chart's label DaemonSet ", deletes("daemonset", left), "no release is installed")
}

func removedObjects(f *Facts) finding {
	left := listed(f.Policies, func(Policy) bool { return true }, func(p Policy) string { return strings.ToLower(p.Kind) + "/" + p.Name })
	left = slices.Sorted(slices.Values(slices.Concat(left, f.objects)))
	return remaining(left, "objects of the cluster with the chart's label: ", "kubectl delete "+strings.Join(left, " "), "no policy, binding or role with the chart's label")
}

func removedDefinitions(f *Facts) finding {
	if !f.APIs.Ours {
		return fine("no definitions of ProxyProfiles and ManagedProxies")
	}
	return failing(fmt.Sprintf("the CustomResourceDefinitions, with %s and %s", printable.Count(len(f.Profiles), "ProxyProfile"), printable.Count(len(f.Proxies), "ManagedProxy")),
		"if nobody needs them: kubectl delete crd --ignore-not-found proxyprofiles.pod-network-controller.istio.io managedproxies.pod-network-controller.istio.io")
}

func removedNamespace(f *Facts) finding {
	var left []string
	for _, name := range []string{agentstatus.Name, agentstatus.Name + "-connectivity-test"} {
		if _, is := f.Namespaces[name]; is {
			left = append(left, name)
		}
	}
	return remaining(left, "namespace ", "if nothing else is in it: kubectl delete namespace "+strings.Join(left, " "),
		"no namespace "+agentstatus.Name+"; a release in another one has left that, since Helm does not own it")
}

func removedPods(f *Facts) finding {
	reported := func(p Pod) bool {
		known := p.Condition != nil && podreport.HasRules(p.Condition.Reason)
		return known || p.Status == string(podreport.StatusInitialized) || p.Status == string(podreport.StatusFailed)
	}
	left := names(f.Pods, reported)
	restarts := listed(f.Pods, reported, func(p Pod) string {
		return "kubectl -n " + p.Namespace + " rollout restart deployment,statefulset,daemonset"
	})
	restarts = slices.Compact(slices.Sorted(slices.Values(restarts)))
	return remaining(left, printable.Count(len(left), "pod")+" with rules of a removed agent, or a report of them: ",
		strings.Join(first(restarts), "; ")+again(restarts), "no pod has a report of rules")
}

func removedGates(f *Facts) finding {
	closed := names(f.Pods, func(p Pod) bool {
		return p.Gated && (p.Condition == nil || p.Condition.Status != corev1.ConditionTrue)
	})
	return remaining(closed, printable.Count(len(closed), "pod")+" with a readiness gate that nobody opens: ",
		"take the gate out of templates of yours, then "+deletes("pods", closed), "no pod waits for the condition "+string(podreport.Condition))
}

func removedTaints(f *Facts) finding {
	left := nodeNames(f, func(n *corev1.Node) bool { return tainted(n, startupTaintKey) })
	return remaining(left, "nodes with the startup taint, which nobody takes off: ",
		"kubectl taint nodes "+strings.Join(first(left), " ")+" "+startupTaintKey+"-; register nodes without it"+again(left), "no node has the startup taint")
}

func removedNodes(f *Facts) finding {
	if found := leftoverEntry(f); found.level == Fail {
		return found
	}
	return fine("what is left on nodes is not seen from here. On each node: kubectl debug node/NODE -it --profile=sysadmin --image=THE-AGENTS-IMAGE" +
		" -- /istio-pod-network-controller check --node --root /host")
}

// remaining is a failure that names what is left, or fine.
func remaining(left []string, message, do, none string) finding {
	if len(left) == 0 {
		return fine(none)
	}
	return failing(message+some(left), do)
}

// maxCommanded bounds how many objects the commands of one line name. A longer line would be cut, within a command.
const maxCommanded = 10

// first returns the first objects of a list, and again what is to be done about the rest.
func first(objects []string) []string { return objects[:min(len(objects), maxCommanded)] }

func again(objects []string) string {
	if rest := len(objects) - maxCommanded; rest > 0 {
		return fmt.Sprintf("; then check again, for %d more", rest)
	}
	return ""
}

// deletes returns the commands that delete the first of some objects, which are named with their namespaces: one for each namespace.
func deletes(kind string, objects []string) string {
	in := map[string]string{}
	for _, object := range first(objects) {
		namespace, name, _ := strings.Cut(object, "/")
		in[namespace] += " " + name
	}
	var out []string
	for _, namespace := range slices.Sorted(maps.Keys(in)) {
		out = append(out, "kubectl -n "+namespace+" delete "+kind+in[namespace])
	}
	return strings.Join(out, "; ") + again(objects)
}
