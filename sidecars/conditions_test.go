package sidecars

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/api/v1alpha1"
)

// ofNodes is a profile of generation 5 with some entries.
func ofNodes(nodes ...v1alpha1.NodeStatus) *v1alpha1.ProxyProfile {
	return &v1alpha1.ProxyProfile{ObjectMeta: metav1.ObjectMeta{Name: "edge", Generation: 5}, Status: v1alpha1.ProxyProfileStatus{Nodes: nodes}}
}

func many(count int, node v1alpha1.NodeStatus) (out []v1alpha1.NodeStatus) {
	for i := range count {
		node.Name = fmt.Sprint("n", i)
		out = append(out, node)
	}
	return out
}

func TestConditions_nodes_areSummedUp(t *testing.T) {
	done := v1alpha1.NodeStatus{Name: "done", ObservedGeneration: 5, Pods: 3, Upgraded: 3}
	going := v1alpha1.NodeStatus{Name: "going", ObservedGeneration: 5, Pods: 3, Upgraded: 1}
	behind := v1alpha1.NodeStatus{Name: "behind", ObservedGeneration: 4, Pods: 3, Upgraded: 3, Failed: 1, Paused: true, Message: "old"}
	paused := v1alpha1.NodeStatus{Name: "paused", ObservedGeneration: 5, Pods: 3, Upgraded: 1, Failed: 1, Paused: true, Message: "shop/cart: no image"}
	refused := v1alpha1.NodeStatus{Name: "refused", ObservedGeneration: 5, Pods: 3, Upgraded: 2, Failed: 1, Message: "shop/cart: hostNetwork"}
	tried := v1alpha1.NodeStatus{Name: "tried", ObservedGeneration: 5, Pods: 3, Upgraded: 1, Failed: 1, Message: "shop/cart: it has ended"}
	for name, c := range map[string]struct {
		nodes []v1alpha1.NodeStatus
		// upgraded, progressing, failed, reason, message
		want [5]string
	}{
		"no pods":                 {nil, [5]string{"True", "True", "False", "NoPods", "no pod has chosen the profile"}},
		"all are":                 {[]v1alpha1.NodeStatus{done, done}, [5]string{"True", "True", "False", "Upgraded", "6 of 6 proxies are ready and of this version; nodes: 2"}},
		"one node goes on":        {[]v1alpha1.NodeStatus{done, going}, [5]string{"False", "True", "False", "Upgrading", "4 of 6 proxies are ready and of this version; nodes: 2"}},
		"the first goes on":       {[]v1alpha1.NodeStatus{going, done}, [5]string{"False", "True", "False", "Upgrading", "4 of 6 proxies are ready and of this version; nodes: 2"}},
		"one knows of no pods":    {[]v1alpha1.NodeStatus{done, {Name: "none"}}, [5]string{"False", "True", "False", "Upgrading", "3 of 3 proxies are ready and of this version; nodes: 2, 1 not up to date (none)"}},
		"one has not seen it":     {[]v1alpha1.NodeStatus{done, behind}, [5]string{"False", "True", "False", "Upgrading", "3 of 6 proxies are ready and of this version; nodes: 2, 1 not up to date (behind)"}},
		"one is paused":           {[]v1alpha1.NodeStatus{done, paused}, [5]string{"False", "False", "True", "Paused", "4 of 6 proxies are ready and of this version; nodes: 2, 1 paused; 1 failed: paused: shop/cart: no image"}},
		"one is paused, one not":  {[]v1alpha1.NodeStatus{paused, going}, [5]string{"False", "True", "True", "Paused", "2 of 6 proxies are ready and of this version; nodes: 2, 1 paused; 1 failed: paused: shop/cart: no image"}},
		"a pod is refused":        {[]v1alpha1.NodeStatus{done, refused}, [5]string{"False", "False", "True", "Failed", "5 of 6 proxies are ready and of this version; nodes: 2; 1 failed: refused: shop/cart: hostNetwork"}},
		"one is tried, no pause":  {[]v1alpha1.NodeStatus{tried}, [5]string{"False", "True", "True", "Failed", "1 of 3 proxies are ready and of this version; nodes: 1; 1 failed: tried: shop/cart: it has ended"}},
		"the first that failed":   {[]v1alpha1.NodeStatus{refused, tried}, [5]string{"False", "True", "True", "Failed", "3 of 6 proxies are ready and of this version; nodes: 2; 2 failed: refused: shop/cart: hostNetwork"}},
		"as many as are listed":   {many(100, done), [5]string{"Unknown", "True", "False", "TooManyNodes", "300 of 300 proxies are ready and of this version; nodes: 100; more nodes are not listed: see the ManagedProxies with the label pod-network-controller.istio.io/profile=edge"}},
		"one node fewer":          {many(99, done), [5]string{"True", "True", "False", "Upgraded", "297 of 297 proxies are ready and of this version; nodes: 99"}},
		"so many, and one failed": {append(many(99, done), refused), [5]string{"False", "False", "True", "Failed", "299 of 300 proxies are ready and of this version; nodes: 100; 1 failed: refused: shop/cart: hostNetwork"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := Conditions(ofNodes(c.nodes...))
			if len(got) != 3 {
				t.Fatalf("%+v", got)
			}
			failed, progressing, upgraded := got[0], got[1], got[2]
			said := [5]string{string(upgraded.Status), string(progressing.Status), string(failed.Status), upgraded.Reason, upgraded.Message}
			if diff := cmp.Diff(c.want, said); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			for i, kind := range []string{v1alpha1.ConditionFailed, v1alpha1.ConditionProgressing, v1alpha1.ConditionUpgraded} {
				if one := got[i]; one.Type != kind || one.ObservedGeneration != 5 || one.Reason != upgraded.Reason || one.Message != upgraded.Message || one.LastTransitionTime.IsZero() {
					t.Errorf("%s: %+v", kind, one)
				}
			}
		})
	}
}

// What says so already is left alone, and a new version is a new case: `kubectl wait` compares the generation.
func TestConditions_nothingChanged_keepsTransitionTime(t *testing.T) {
	p := ofNodes(v1alpha1.NodeStatus{Name: "n", ObservedGeneration: 5, Pods: 1, Upgraded: 1})
	p.Status.Conditions = Conditions(p)
	long := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	for i := range p.Status.Conditions {
		p.Status.Conditions[i].LastTransitionTime = long
	}
	if diff := cmp.Diff(p.Status.Conditions, Conditions(p)); diff != "" {
		t.Errorf("-before +after:\n%s", diff)
	}
	p.Generation = 6
	after := Conditions(p)
	if c := after[2]; c.Status != metav1.ConditionFalse || c.ObservedGeneration != 6 || c.LastTransitionTime == long {
		t.Errorf("Upgraded is %+v", c)
	}
	if c := after[1]; c.Status != metav1.ConditionTrue || c.ObservedGeneration != 6 || c.LastTransitionTime != long {
		t.Errorf("Progressing is %+v", c)
	}
	if before := p.Status.Conditions[2]; before.Status != metav1.ConditionTrue || strings.Contains(before.Message, "not up to date") {
		t.Errorf("the profile itself was changed: %+v", before)
	}
}
