package check

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podreport"
)

// removedFacts are the good cluster after an uninstall that left nothing.
func removedFacts() *Facts {
	f := goodFacts()
	f.removal, f.DaemonSets, f.Agents, f.Policies = true, nil, nil, nil
	f.Pods[0].Status = ""
	return f
}

func TestRun_removalOfAll_isOK(t *testing.T) {
	results := Run(removedFacts(), false)
	if Worst(results) != OK || len(results) != 8 {
		t.Error(Text(results))
	}
	if r := find(results, "removal-nodes"); !strings.Contains(r.Message, "check --node --root /host") {
		t.Errorf("%+v", r)
	}
}

func TestRun_removal_namesWhatIsLeft(t *testing.T) {
	for name, tc := range map[string]struct {
		change          func(f *Facts)
		check, want, do string
	}{
		"the release": {func(f *Facts) {
			f.DaemonSets = goodFacts().DaemonSets
			f.DaemonSets[0].Annotations = map[string]string{"meta.helm.sh/release-name": "mesh"}
		}, "removal-release", "DaemonSet agents/agent", "helm uninstall mesh -n agents --wait"},
		"a shared proxy": {func(f *Facts) {
			f.DaemonSets = []appsv1.DaemonSet{daemonSetOf("agents", "edge", "envoy:1")}
			f.DaemonSets[0].Labels = map[string]string{"app.kubernetes.io/name": "istio-pod-network-controller"}
		}, "removal-release", "DaemonSet agents/edge", "kubectl -n agents delete daemonset edge"},
		"policies and roles": {func(f *Facts) {
			f.Policies, f.objects = []Policy{{"agent", "ValidatingAdmissionPolicy", true}}, []string{"clusterrole/agent", "validatingadmissionpolicybinding/agent"}
		}, "removal-objects", "clusterrole/agent, validatingadmissionpolicy/agent", "kubectl delete clusterrole/agent validatingadmissionpolicy/agent validatingadmissionpolicybinding/agent"},
		"definitions": {func(f *Facts) {
			f.APIs.Ours, f.Profiles = true, map[string]v1alpha1.ProxyProfileSpec{"istio": {}}
			f.Proxies = []v1alpha1.ManagedProxy{{}}
		}, "removal-definitions", "with 1 ProxyProfile and 1 ManagedProxy", "kubectl delete crd --ignore-not-found proxyprofiles.pod-network-controller.istio.io managedproxies.pod-network-controller.istio.io"},
		"the namespace":    {func(f *Facts) { f.Namespaces["istio-pod-network-controller"] = nil }, "removal-namespace", "istio-pod-network-controller", "kubectl delete namespace istio-pod-network-controller"},
		"a pod with rules": {func(f *Facts) { f.Pods[0].Status = "initialized" }, "removal-pods", "shop/cart", "kubectl -n shop rollout restart deployment,statefulset,daemonset"},
		"a pod with the condition": {func(f *Facts) {
			f.Pods[0].Condition = &corev1.PodCondition{Status: corev1.ConditionTrue, Reason: podreport.ReasonInitialized}
		}, "removal-pods", "shop/cart", "rollout restart"},
		"a gate that nobody opens": {func(f *Facts) { f.Pods[0].Gated = true }, "removal-gates", "shop/cart", "kubectl -n shop delete pods cart"},
		"a taint":                  {func(f *Facts) { f.Nodes[1].Spec.Taints = taints(startupTaintKey) }, "removal-taints", "n2", "kubectl taint nodes n2 " + startupTaintKey + "-"},
		"a CNI entry":              {func(f *Facts) { f.Leftovers = []string{"n1"} }, "removal-nodes", "CNI chain of n1", "docs/cni.md"},
		"what cannot be read": {func(f *Facts) {
			f.failed = []unread{{sourcePods, "list pods in all namespaces", errors.New("forbidden")}}
		}, "missing-rights", "pods could not be read", "have the right to list pods"},
	} {
		t.Run(name, func(t *testing.T) {
			f := removedFacts()
			tc.change(f)
			results := Run(f, false)
			if r := find(results, tc.check); r.Level != Fail || !strings.Contains(r.Message, tc.want) || !strings.Contains(r.Do, tc.do) {
				t.Errorf("%+v, want %q, do %q\n%s", r, tc.want, tc.do, Text(results))
			}
		})
	}
}

// What belongs to an installed release is left by nobody. A gate that is open stays open.
func TestRun_removal_namesNothingElse(t *testing.T) {
	f := removedFacts()
	f.Pods[0].Gated, f.Pods[0].Condition = true, &corev1.PodCondition{Status: corev1.ConditionTrue, Reason: podreport.ReasonNotRequired}
	if results := Run(f, false); Worst(results) != OK {
		t.Error(Text(results))
	}
	f = goodFacts()
	f.removal = true
	if results := Run(f, false); len(results) != 1 || results[0].Check != "removal-release" {
		t.Error(Text(results))
	}
}

func TestGather_removal_readsObjectsOfTheCluster(t *testing.T) {
	labelled := object("", "agent")
	labelled.Labels["app.kubernetes.io/name"] = "istio-pod-network-controller"
	gated := &corev1.Pod{ObjectMeta: object("shop", "gated")}
	gated.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: podreport.Condition}}
	c := served(t, fake.NewClientset(&rbacv1.ClusterRole{ObjectMeta: labelled}, &rbacv1.ClusterRoleBinding{ObjectMeta: labelled}, &rbacv1.ClusterRole{ObjectMeta: object("", "view")}, gated))
	f := Gatherer{Client: c, Removal: true, Intent: func([]string) (intent.Config, error) { return intent.Config{}, nil }}.Gather(t.Context())
	if len(f.failed) > 0 || strings.Join(f.objects, " ") != "clusterrole/agent clusterrolebinding/agent" || !podNamed(t, f.Pods, "gated").Gated {
		t.Errorf("%+v, %q, %+v", f.failed, f.objects, f.Pods)
	}
}

// A longer line would be cut within a command, and then pasted.
func TestRun_removalOfMany_givesWholeCommands(t *testing.T) {
	f := removedFacts()
	f.Pods, f.Nodes = nil, nil
	for i := range 300 {
		pod := Pod{Namespace: fmt.Sprintf("team-%03d", i), Name: "a", Status: "initialized", Gated: true}
		f.Pods = append(f.Pods, pod, Pod{Namespace: "shop", Name: fmt.Sprintf("cart-5d8f7c9b6-%03d", i), Status: "initialized", Gated: true})
		f.Nodes = append(f.Nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("ip-10-0-0-%03d.eu-central-1.compute.internal", i)}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: startupTaintKey}}}})
	}
	results := Run(f, false)
	for name, left := range map[string]string{"removal-pods": "291", "removal-gates": "590", "removal-taints": "290"} {
		if r := find(results, name); strings.HasSuffix(r.Do, "...") || !strings.HasSuffix(r.Do, "; then check again, for "+left+" more") {
			t.Errorf("%s: %s", name, r.Do)
		}
	}
}
