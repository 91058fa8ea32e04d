package survey

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"istio-pod-network-controller/test/standins/apistandin"
)

// Whoever lacks rights gets what the others give, and is told which are missing.
func TestAsk_missingRights_areNamed(t *testing.T) {
	s := &apistandin.Server{
		Pods:  []corev1.Pod{newPod("shop", "cart", "a", reports("initialized", "Initialized", "True")), newAgent("a", says(fine()))},
		Nodes: []corev1.Node{newNode("a")}, Namespaces: []corev1.Namespace{newNamespace("shop", "")},
	}
	deny := func(denied ...string) func(string, string) bool {
		return func(resource, namespace string) bool {
			return slices.Contains(denied, resource) || slices.Contains(denied, resource+"/"+namespace)
		}
	}
	for name, c := range map[string]struct {
		forbids     func(string, string) bool
		all         bool
		wantMissing []string // a part of each
		wantNodes   int
		wantPods    int
		wantErr     bool
	}{
		"none is missing": {deny(), true, nil, 1, 1, false},
		"nodes":           {deny("nodes"), true, []string{`"list nodes" for the whole cluster`}, 1, 1, false},
		"namespaces":      {deny("namespaces"), true, []string{`"list namespaces"`}, 1, 1, false},
		"the namespace":   {deny("namespaces"), false, []string{`"get namespaces" for namespace shop`}, 1, 1, false},
		"pods of all": {
			deny("pods/"), true,
			[]string{
				"agents are not shown, as namespace istio-pod-network-controller has none",
				`"list pods" for the whole cluster (config/samples/status-reader.yaml grants it): only those of namespace shop`,
			},
			1, 1, false,
		},
		"all but the pods of one": {
			deny("nodes", "namespaces", "pods/", "pods/istio-pod-network-controller"), false,
			[]string{`"list nodes"`, `"list pods" in namespace istio-pod-network-controller: agents are not shown`, `"get namespaces"`},
			0, 1, false,
		},
		"all pods": {deny("pods"), true, []string{"agents are not shown", "only those of namespace shop", "no pods are shown"}, 1, 0, false},
		"all":      {deny("pods", "nodes", "namespaces"), true, nil, 0, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			s.Forbids = c.forbids
			o := Options{Namespace: "shop"}
			if c.all {
				o = Options{Fallback: "shop"}
			}
			r, err := ask1(t, s, o)
			if (err != nil) != c.wantErr || err != nil && !apierrors.IsForbidden(err) {
				t.Fatalf("error %v", err)
			}
			if len(r.Nodes) != c.wantNodes || len(r.Pods) != c.wantPods {
				t.Errorf("%d nodes and %d pods, want %d and %d: %+v", len(r.Nodes), len(r.Pods), c.wantNodes, c.wantPods, r)
			}
			incomplete := slices.ContainsFunc(c.wantMissing, func(s string) bool { return strings.Contains(s, "namespace shop") && !strings.Contains(s, "get") })
			if r.Failing() || r.Incomplete != incomplete {
				t.Errorf("failing %t, incomplete %t: %+v", r.Failing(), r.Incomplete, r)
			}
			checkLines(t, r.Missing, c.wantMissing)
		})
	}
}

// checkLines wants as many lines as there are parts, each with its part.
func checkLines(t *testing.T, lines, parts []string) {
	t.Helper()
	if len(lines) != len(parts) {
		t.Fatalf("%q, want %q", lines, parts)
	}
	for i, part := range parts {
		if !strings.Contains(lines[i], part) {
			t.Errorf("%q, want %q", lines[i], part)
		}
	}
}
