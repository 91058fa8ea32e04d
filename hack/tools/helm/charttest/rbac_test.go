package charttest

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	rbacv1 "k8s.io/api/rbac/v1"
)

// need is a right of the agent's, and the line of code that takes it.
type need struct {
	verb, group, resource string
	// own is for a right to the one object of the agent's name, in the release's namespace only, and lease for one to its Lease there.
	own, lease bool
	// object is the one name that a right is for, or "", and in reports whether it is for one namespace, Istio's.
	object     string
	in         bool
	file, code string
	// when is for rights that some values alone need.
	when func(values map[string]any) bool
}

// needs are all that the agent asks of the API server. Reads through the cache are a list and a watch.
func needs() []need {
	taint := func(values map[string]any) bool { return values["startupTaint"] == true }
	cni := func(values map[string]any) bool { return values["cni"] == "install" }
	const core, events, ours = "", "events.k8s.io", apiGroup
	const cache, live, write, tell = "controllers/cache.go", "controllers/pods.go", "controllers/writer.go", "controllers/writer.go"
	const proxies, shown, counted = "sidecars/node/proxies.go", "sidecars/node/reports.go", "sidecars/node/proxycounts.go"
	const maps = "sidecars/node/configmaps.go"
	const leases, election, elected = "coordination.k8s.io", "sidecars/node/election.go", "resourcelock.LeaseLock{"
	return []need{
		{verb: "list", group: core, resource: "pods", file: cache, code: "&corev1.Pod{}:"},
		{verb: "watch", group: core, resource: "pods", file: cache, code: "&corev1.Pod{}:"},
		{verb: "get", group: core, resource: "pods", file: live, code: "isOf(s), r.Live)"},
		{verb: "list", group: core, resource: "namespaces", file: cache, code: "&corev1.Namespace{}:"},
		{verb: "watch", group: core, resource: "namespaces", file: cache, code: "&corev1.Namespace{}:"},
		{verb: "get", group: core, resource: "namespaces", file: live, code: `Kind: "Namespace"`},
		{verb: "patch", group: core, resource: "pods/status", file: write, code: "w.client.Status().Patch("},
		{verb: "create", group: events, resource: "events", file: tell, code: "w.recorder.Eventf("},
		// An event that comes again is counted on.
		{verb: "patch", group: events, resource: "events", file: tell, code: "w.recorder.Eventf("},
		{verb: "list", group: core, resource: "nodes", file: cache, code: "&corev1.Node{}:", when: taint},
		{verb: "watch", group: core, resource: "nodes", file: cache, code: "&corev1.Node{}:", when: taint},
		{verb: "patch", group: core, resource: "nodes", file: "controllers/startuptaint.go", code: "s.Nodes.Patch(", when: taint},
		{verb: "get", group: "apps", resource: "daemonsets", own: true, file: "agent/keepchain.go", code: `Resource: "daemonsets"`, when: cni},
		{verb: "list", group: ours, resource: "proxyprofiles", file: proxies, code: "For(&v1alpha1.ProxyProfile{},", when: sidecarsIn},
		{verb: "watch", group: ours, resource: "proxyprofiles", file: proxies, code: "For(&v1alpha1.ProxyProfile{},", when: sidecarsIn},
		// To apply an object that is not there is to create it.
		{verb: "create", group: ours, resource: "managedproxies", file: shown, code: "r.client.Apply(", when: sidecarsIn},
		{verb: "patch", group: ours, resource: "managedproxies", file: shown, code: "r.client.Apply(", when: sidecarsIn},
		{verb: "delete", group: ours, resource: "managedproxies", file: shown, code: "r.client.Delete(", when: sidecarsIn},
		{verb: "patch", group: ours, resource: "managedproxies/status", file: shown, code: "r.client.Status().Apply(", when: sidecarsIn},
		{verb: "create", group: core, resource: "serviceaccounts/token", file: "sidecars/node/secrets.go", code: `SubResource("token").Create(`, when: tokensIn},
		{verb: "list", group: core, resource: "configmaps", object: "istio-ca-root-cert", file: maps, code: "c.api.List(", when: istioIn},
		{verb: "watch", group: core, resource: "configmaps", object: "istio-ca-root-cert", file: maps, code: "c.api.Watch(", when: istioIn},
		{verb: "get", group: core, resource: "configmaps", in: true, file: "sidecars/node/cluster.go", code: "c.pods.Live.Get(", when: istioIn},
		{verb: "list", group: ours, resource: "managedproxies", file: counted, code: "c.api.List(", when: sidecarsIn},
		{verb: "watch", group: ours, resource: "managedproxies", file: counted, code: "c.api.Watch(", when: sidecarsIn},
		{verb: "patch", group: ours, resource: "proxyprofiles/status", file: "sidecars/node/profilestatuses.go", code: "s.client.Status().Patch(", when: sidecarsIn},
		// The name of an object that is not there yet cannot be in a role.
		{verb: "create", group: leases, resource: "leases", lease: true, file: election, code: elected, when: sidecarsIn},
		{verb: "get", group: leases, resource: "leases", lease: true, file: election, code: elected, when: sidecarsIn},
		{verb: "update", group: leases, resource: "leases", lease: true, file: election, code: elected, when: sidecarsIn},
		{verb: "create", group: "authentication.k8s.io", resource: "tokenreviews", file: "internal/apiauth/apiauth.go", code: "&authenticationv1.TokenReview{", when: reviewsIn},
		{verb: "create", group: "authorization.k8s.io", resource: "subjectaccessreviews", file: "internal/apiauth/apiauth.go", code: "&authorizationv1.SubjectAccessReview{", when: reviewsIn},
		// The kubelet's side of it: the SecurityContextConstraints that admit the agent's pod.
		{
			verb: "use", group: "security.openshift.io", resource: "securitycontextconstraints", own: true,
			file: "chart/istio-pod-network-controller/templates/openshift.yaml", code: "kind: SecurityContextConstraints",
			when: func(values map[string]any) bool { return values["platform"] == "openshift" },
		},
	}
}

// reviewsIn reports whether values have the agent ask who may read something of it.
func reviewsIn(values map[string]any) bool {
	metrics, _ := values["metrics"].(map[string]any)
	inspect, given := values["inspect"].(map[string]any)
	return metrics["secure"] == true || !given || inspect["enabled"] != false
}

// right is a need as RBAC has it, comparable.
type right struct {
	verb, group, resource, object string
	namespaced                    bool
}

// The agent may do what it needs, and nothing else.
func TestRightsAreThoseThatTheAgentNeeds(t *testing.T) {
	sets := cases(t)
	sets["nobody may inspect"] = "inspect: {enabled: false}"
	sets["the startup taint alone"] = "startupTaint: true"
	sets["the CNI chain alone"] = "cni: install"
	sets["proxies alone"] = withSidecars
	sets["proxies, Secrets"] = withSecrets
	sets["proxies, no policies"] = "{sidecars: {enabled: true}, admission: {restrictAgent: false}}"
	sets["tokens for proxies"] = withTokens
	sets["tokens, but no proxies"] = "{sidecars: {enabled: false, tokenAudiences: [istio-ca]}, admission: {restrictAgent: true}}"
	sets["Istio's proxies"] = withIstio
	sets["metrics by TLS"] = withTLS
	sets["metrics by TLS, and nobody may inspect"] = "{metrics: {secure: true}, inspect: {enabled: false}}"
	sets["all at once"] = "{startupTaint: true, cni: install, nri: 'off', backend: iptables, processFallback: true, admission: {restrictAgent: true}, sidecars: {enabled: true}}"
	for name, values := range sets {
		t.Run(name, func(t *testing.T) {
			var want []right
			for _, n := range needs() {
				if n.when == nil || n.when(valuesMap(t, values)) {
					object := n.object
					switch {
					case n.own:
						object = account(t, values)
					case n.lease && n.verb != "create":
						object = leaseName(t)
					}
					want = append(want, right{n.verb, n.group, n.resource, object, n.own || n.lease || n.in})
				}
			}
			anyOrder := cmpopts.SortSlices(func(a, b right) int {
				return slices.Compare([]string{a.group, a.resource, a.verb}, []string{b.group, b.resource, b.verb})
			})
			if diff := cmp.Diff(want, granted(t, values), anyOrder, cmp.AllowUnexported(right{})); diff != "" {
				t.Errorf("rights (-needed +given):\n%s", diff)
			}
		})
	}
}

// leaseName is the name of the Lease in the program.
func leaseName(t *testing.T) string {
	t.Helper()
	_, rest, _ := strings.Cut(read(t, filepath.Join(chartDir, "../../sidecars/node/election.go")), `leaseName = "`)
	out, _, _ := strings.Cut(rest, `"`)
	return out
}

// A right whose code is gone has to go, too.
func TestNeedsAreInTheCode(t *testing.T) {
	for _, n := range needs() {
		if !strings.Contains(read(t, filepath.Join(chartDir, "../..", n.file)), n.code) {
			t.Errorf("%s of %s: %s has no %q any more", n.verb, n.resource, n.file, n.code)
		}
	}
}

// granted are the rights of all roles that the chart renders, but those for people. Each role must be bound once, to the agent's account only.
func granted(t *testing.T, values string) []right {
	t.Helper()
	var found []right
	bound := map[rbacv1.RoleRef]int{}
	want := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: account(t, values), Namespace: name}}
	bind := func(ref rbacv1.RoleRef, subjects []rbacv1.Subject) {
		bound[ref]++
		if diff := cmp.Diff(want, subjects); diff != "" {
			t.Errorf("%s %s is given to (-want +got):\n%s", ref.Kind, ref.Name, diff)
		}
	}
	for _, doc := range documents(t, values) {
		switch o := decode(t, doc).(type) {
		case *rbacv1.ClusterRole:
			if forPeople(o) {
				continue
			}
			found = append(found, flatten(o.Rules, false)...)
			bound[rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: o.Name}]--
		case *rbacv1.Role:
			if forDevelopers(o.Name) || o.Name == sharedName {
				continue
			}
			found = append(found, flatten(o.Rules, true)...)
			bound[rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: o.Name}]--
		case *rbacv1.ClusterRoleBinding:
			bind(o.RoleRef, o.Subjects)
		case *rbacv1.RoleBinding:
			if o.Name != sharedName { // TestWhatOpenShiftAllowsSharedProxies
				bind(o.RoleRef, o.Subjects)
			}
		}
	}
	for ref, n := range bound {
		if n != 0 {
			t.Errorf("%s %s: %d bindings more than roles of the name", ref.Kind, ref.Name, n)
		}
	}
	return found
}

// forDevelopers reports whether a Role is for people who inspect their pods. It is bound by whoever wants it bound.
func forDevelopers(role string) bool {
	return strings.HasSuffix(role, "-inspect") || strings.HasSuffix(role, "-inspect-tunnel")
}

// What developers need is given to nobody by the chart, and is no more than docs/inspect.md says.
func TestRolesOfDevelopersAreBoundToNobody(t *testing.T) {
	for values, want := range map[string][]right{
		"{}":                        {{"list", "", "pods", "", true}, {"get", "", "pods/proxy", "", true}},
		"inspect: {enabled: false}": nil,
	} {
		var found []right
		for _, doc := range documents(t, values) {
			switch o := decode(t, doc).(type) {
			case *rbacv1.Role:
				if forDevelopers(o.Name) {
					found = append(found, flatten(o.Rules, true)...)
				}
			case *rbacv1.RoleBinding:
				if forDevelopers(o.RoleRef.Name) {
					t.Errorf("%s: %s binds it", values, o.Name)
				}
			}
		}
		if diff := cmp.Diff(want, found, cmp.AllowUnexported(right{})); diff != "" {
			t.Errorf("%s: rights (-want +got):\n%s", values, diff)
		}
	}
}

// account is the agent's, which has the agent's name.
func account(t *testing.T, values string) string {
	t.Helper()
	return daemonSet(t, values).Spec.Template.Spec.ServiceAccountName
}

// flatten returns each right of rules on its own.
func flatten(rules []rbacv1.PolicyRule, namespaced bool) []right {
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
						out = append(out, right{verb, group, resource, object, namespaced})
					}
				}
			}
		}
		for _, path := range rule.NonResourceURLs {
			out = append(out, right{resource: path})
		}
	}
	return out
}
