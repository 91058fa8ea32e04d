package charttest

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// need is what the agent asks of the API server, the line of code that does, and the values that have it do so. Reads through the cache are a list and a
// watch.
type need struct {
	verbs, group, resource string
	// object and namespace narrow the right. "own" is the agent's name, "lease" its Lease's, and "istio" the control plane's namespace.
	object, namespace string
	file, code        string
	when              func(values map[string]any) bool
}

// needs are all of them.
func needs() []need {
	always := func(map[string]any) bool { return true }
	asNode := func(values map[string]any) bool { return at(values, "pods", "readAsNode") == true }
	podsAtAPI := func(values map[string]any) bool { return at(values, "pods", "from") != "kubelet" && !asNode(values) }
	podsAsNode := func(values map[string]any) bool { return at(values, "pods", "from") != "kubelet" && asNode(values) }
	taint := func(values map[string]any) bool { return at(values, "hooks", "startupTaint", "enabled") == true }
	nodes := func(values map[string]any) bool { return taint(values) && !asNode(values) }
	nodesAsNode := func(values map[string]any) bool { return taint(values) && asNode(values) }
	cni := func(values map[string]any) bool { return at(values, "hooks", "cni", "mode") == "install" }
	platform := func(values map[string]any) bool {
		return strings.EqualFold(fmt.Sprint(at(values, "kubernetesDistribution")), "openshift")
	}
	const core, events, ours, leases = "", "events.k8s.io", apiGroup, "coordination.k8s.io"
	const listAsNode = "impersonate-on:associated-node:list impersonate-on:associated-node:watch"
	const cache, live, write, node, auth = "controllers/cache.go", "controllers/pods.go", "controllers/writer.go", "sidecars/node/", "internal/apiauth/apiauth.go"
	return []need{
		{"list watch", core, "pods", "", "", cache, "&corev1.Pod{}:", podsAtAPI},
		{"get", core, "pods", "", "", live, "find(ctx, r.Live, ", podsAtAPI},
		{"impersonate:associated-node", "authentication.k8s.io", "nodes", "", "", "controllers/asnode.go", "Impersonate-User", asNode},
		{listAsNode, core, "pods", "", "", cache, "&corev1.Pod{}:", podsAsNode},
		{"list watch", core, "namespaces", "", "", cache, "&corev1.Namespace{}:", always},
		{"get", core, "namespaces", "", "", live, `Kind: "Namespace"`, always},
		{"patch", core, "pods/status", "", "", write, "w.client.Status().Patch(", always},
		// An event that comes again is counted on.
		{"create patch", events, "events", "", "", write, "w.recorder.Eventf(", always},
		{"list watch", core, "nodes", "", "", cache, "&corev1.Node{}:", nodes},
		{listAsNode, core, "nodes", "", "", cache, "&corev1.Node{}:", nodesAsNode},
		{"patch", core, "nodes", "", "", "controllers/startuptaint.go", "s.Nodes.Patch(", taint},
		{"get", "apps", "daemonsets", "own", name, "agent/keepchain.go", `Resource: "daemonsets"`, cni},
		{"list watch", ours, "proxyprofiles", "", "", node + "proxies.go", "For(&v1alpha1.ProxyProfile{},", sidecarsIn},
		// To apply an object that is not there is to create it.
		{"create patch", ours, "managedproxies", "", "", node + "reports.go", "r.client.Apply(", sidecarsIn},
		{"delete", ours, "managedproxies", "", "", node + "reports.go", "r.client.Delete(", sidecarsIn},
		{"patch", ours, "managedproxies/status", "", "", node + "reports.go", "r.client.Status().Apply(", sidecarsIn},
		{"create", core, "serviceaccounts/token", "", "", node + "secrets.go", `SubResource("token").Create(`, tokensIn},
		{"list", core, "configmaps", "istio-ca-root-cert", "", node + "configmaps.go", "c.api.List(", istioIn},
		{"watch", core, "configmaps", "istio-ca-root-cert", "", node + "configmaps.go", "c.api.Watch(", istioIn},
		{"list", core, "configmaps", "istio-ca-crl", "", node + "configmaps.go", "c.api.List(", istioIn},
		{"watch", core, "configmaps", "istio-ca-crl", "", node + "configmaps.go", "c.api.Watch(", istioIn},
		{"list", "networking.istio.io", "proxyconfigs", "", "", node + "cluster.go", "c.pods.Live.List(", istioIn},
		{"get", core, "configmaps", "", "istio", node + "cluster.go", "c.pods.Live.Get(", istioIn},
		{"list", ours, "managedproxies", "", "", node + "proxycounts.go", "c.api.List(", sidecarsIn},
		{"watch", ours, "managedproxies", "", "", node + "proxycounts.go", "c.api.Watch(", sidecarsIn},
		{"patch", ours, "proxyprofiles/status", "", "", node + "profilestatuses.go", "s.client.Status().Patch(", sidecarsIn},
		// The name of an object that is not there yet cannot be in a role.
		{"create", leases, "leases", "", name, node + "profilestatuses.go", "resourcelock.LeaseLock{", sidecarsIn},
		{"get update", leases, "leases", "lease", name, node + "profilestatuses.go", "resourcelock.LeaseLock{", sidecarsIn},
		{"create", "authentication.k8s.io", "tokenreviews", "", "", auth, "&authenticationv1.TokenReview{", reviewsIn},
		{"create", "authorization.k8s.io", "subjectaccessreviews", "", "", auth, "&authorizationv1.SubjectAccessReview{", reviewsIn},
		// The kubelet's side of it: the SecurityContextConstraints that admit the agent's pod.
		{"use", "security.openshift.io", "securitycontextconstraints", "own", name, "chart/istio-pod-network-controller/templates/openshift.yaml", "kind: SecurityContextConstraints", platform},
	}
}

// at is one of values by its path: nil if it is not there.
func at(values map[string]any, path ...string) any {
	for _, name := range path[:len(path)-1] {
		values, _ = values[name].(map[string]any)
	}
	return values[path[len(path)-1]]
}

// reviewsIn reports whether values have the agent ask who may read something of it.
func reviewsIn(values map[string]any) bool {
	return at(values, "monitoring", "secure") == true || at(values, "inspect", "enabled") == true
}

func sidecarsIn(values map[string]any) bool { return at(values, "proxies", "enabled") == true }

func istioIn(values map[string]any) bool {
	return sidecarsIn(values) && at(values, "proxies", "istio", "enabled") == true
}

// tokensIn reports whether values have the agent create tokens.
func tokensIn(values map[string]any) bool {
	audiences, _ := at(values, "proxies", "tokenAudiences").([]any)
	return sidecarsIn(values) && len(audiences) > 0 || istioIn(values)
}

// right is one of RBAC's. Without a namespace it is the whole cluster's.
type right struct{ verb, group, resource, object, namespace string }

// The agent may do what it needs, and nothing else.
func TestRightsAreThoseThatTheAgentNeeds(t *testing.T) {
	sets := slices.Collect(maps.Values(cases(t)))
	sets = append(sets, "hooks.startupTaint.enabled: true", "hooks.cni.mode: install", "{hooks.cni.mode: install, fullnameOverride: other}", "hooks.cni.mode: uninstall", "pods.from: kubelet", "pods.from: api", "pods.readAsNode: true", "{pods.from: kubelet, pods.readAsNode: true, hooks.startupTaint.enabled: true}", "inspect: {enabled: true}",
		withSidecars, withSecrets, "{proxies: {enabled: true}, admission: {restrictAgent: false}}", withTokens, withIstio, withTLS,
		"{proxies: {enabled: false, tokenAudiences: [istio-ca], configMaps: [a]}, admission: {restrictAgent: true}}")
	for _, text := range sets {
		made, values := rendering(t, text), parse(t, text)
		var want []right
		for _, n := range needs() {
			if n.when(values) {
				want = append(want, n.rights(t, made, values)...)
			}
		}
		same(t, want, granted(t, made.objects)[name+"/"+made.agent(t).ServiceAccountName], "%s: rights", text)
	}
}

func less(a, b right) bool {
	return slices.Compare([]string{a.group, a.resource, a.verb, a.object}, []string{b.group, b.resource, b.verb, b.object}) < 0
}

// rights are those of a need for values.
func (n need) rights(t *testing.T, made rendered, values map[string]any) (found []right) {
	t.Helper()
	switch n.object {
	case "own":
		n.object = made.daemonSet(t).Name
	case "lease":
		n.object = leaseName(t)
	}
	if n.namespace == "istio" {
		n.namespace = "istio-system"
		if named, ok := at(values, "proxies", "istio", "namespace").(string); ok {
			n.namespace = named
		}
	}
	for verb := range strings.FieldsSeq(n.verbs) {
		found = append(found, right{verb, n.group, n.resource, n.object, n.namespace})
	}
	return found
}

// leaseName is the name of the Lease in the program.
func leaseName(t *testing.T) string {
	t.Helper()
	_, rest, _ := strings.Cut(read(t, filepath.Join(rootDir, "sidecars/node/profilestatuses.go")), `leaseName = "`)
	out, _, _ := strings.Cut(rest, `"`)
	return out
}

// A right whose code is gone has to go, too.
func TestNeedsAreInTheCode(t *testing.T) {
	for _, n := range needs() {
		if !strings.Contains(read(t, filepath.Join(rootDir, n.file)), n.code) {
			t.Errorf("%s of %s: %s has no %q any more", n.verbs, n.resource, n.file, n.code)
		}
	}
}

// What people need is given to nobody by the chart. The author of a profile can run any program on every node: none of the cluster's roles may come
// to include that. What developers need is no more than docs/inspect.md says.
func TestRolesOfDevelopersAreBoundToNobody(t *testing.T) {
	made := rendering(t, "{inspect: {enabled: true}, monitoring: {secure: true}, proxies: {enabled: true}, kubernetesDistribution: kubernetes}")
	var edit, view []right
	for _, verb := range []string{"get", "list", "watch", "create", "update", "patch", "delete"} {
		edit = append(edit, right{verb: verb, group: apiGroup, resource: "proxyprofiles"})
	}
	for _, resource := range []string{"proxyprofiles", "managedproxies"} {
		for _, verb := range []string{"get", "list", "watch"} {
			view = append(view, right{verb: verb, group: apiGroup, resource: resource})
		}
	}
	got := granted(t, made.objects)
	delete(got, name+"/"+name)
	want := map[string][]right{
		"-profiles-edit": edit, "-sidecars-view": view, "-metrics-reader": {{verb: "get", resource: "/metrics"}},
		"-inspect": {{"list", "", "pods", "", name}}, "-inspect-tunnel": {{"get", "", "pods/proxy", "", name}},
	}
	same(t, want, got, "rights of roles that nobody has")
	for _, role := range all[*rbacv1.ClusterRole](made.objects) {
		for label, value := range role.Labels {
			if part, ok := strings.CutPrefix(label, "rbac.authorization.k8s.io/aggregate-to-"); ok && role.Name+part+value != name+"-sidecars-view"+"view"+"true" {
				t.Errorf("%s is part of %s: %s", role.Name, part, value)
			}
		}
	}
}

// granted are the rights of each account, by its namespace and name, and those of each role that nobody has, by the end of its name.
func granted(t *testing.T, objects []runtime.Object) map[string][]right {
	t.Helper()
	roles, found := map[string][]right{}, map[string][]right{}
	for _, role := range all[*rbacv1.ClusterRole](objects) {
		roles["ClusterRole /"+role.Name] = flatten(role.Rules, "")
	}
	for _, role := range all[*rbacv1.Role](objects) {
		roles["Role "+role.Namespace+"/"+role.Name] = flatten(role.Rules, role.Namespace)
	}
	bound := map[string]bool{}
	bind := func(ref rbacv1.RoleRef, namespace string, subjects []rbacv1.Subject) {
		role := ref.Kind + " " + namespace + "/" + ref.Name
		if roles[role] == nil || bound[role] || len(subjects) != 1 || subjects[0].Kind != rbacv1.ServiceAccountKind {
			t.Errorf("%s is bound to %v, twice: %t, with the rights %v", role, subjects, bound[role], roles[role])
			return
		}
		bound[role] = true
		account := subjects[0].Namespace + "/" + subjects[0].Name
		found[account] = append(found[account], roles[role]...)
	}
	for _, b := range all[*rbacv1.ClusterRoleBinding](objects) {
		bind(b.RoleRef, "", b.Subjects)
	}
	for _, b := range all[*rbacv1.RoleBinding](objects) {
		bind(b.RoleRef, b.Namespace, b.Subjects)
	}
	for role, rights := range roles {
		if !bound[role] {
			_, end, _ := strings.Cut(role, "/"+name)
			found[end] = rights
		}
	}
	return found
}

// flatten returns each right of rules on its own.
func flatten(rules []rbacv1.PolicyRule, namespace string) []right {
	var out []right
	for _, rule := range rules {
		objects := rule.ResourceNames
		if len(objects) == 0 {
			objects = []string{""}
		}
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					for _, object := range objects {
						out = append(out, right{verb, group, resource, object, namespace})
					}
				}
			}
		}
		for _, path := range rule.NonResourceURLs {
			out = append(out, right{verb: strings.Join(rule.Verbs, ","), resource: path})
		}
	}
	return out
}
