package rollout

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/api/v1alpha1"
)

// nodesOf names counts of nodes.
func nodesOf(counts ...NodeCount) map[string]NodeCount {
	out := map[string]NodeCount{}
	for i, one := range counts {
		out[fmt.Sprint("node-", i)] = one
	}
	return out
}

func TestStatusOf_nodes_areSummedUp(t *testing.T) {
	done := NodeCount{Pods: 3, Upgraded: 3}
	going := NodeCount{Pods: 3, Upgraded: 1}
	paused := NodeCount{Pods: 3, Upgraded: 1, Failed: 1, Paused: true}
	refused := NodeCount{Pods: 3, Upgraded: 2, Failed: 1}
	tried := NodeCount{Pods: 3, Upgraded: 1, Failed: 1}
	many := make([]NodeCount, 1000)
	for i := range many {
		many[i] = done
	}
	for name, c := range map[string]struct {
		nodes []NodeCount
		// pods, upgraded, failed, nodes, paused nodes
		counts [5]int32
		// upgraded, progressing, failed, reason, message
		want [5]string
	}{
		"no pods":                {nil, [5]int32{}, [5]string{"True", "True", "False", "NoPods", "no pod has chosen the profile"}},
		"all are":                {[]NodeCount{done, done}, [5]int32{6, 6, 0, 2, 0}, [5]string{"True", "True", "False", "Upgraded", "6 of 6 proxies are ready and of this version; nodes: 2"}},
		"one node goes on":       {[]NodeCount{done, going}, [5]int32{6, 4, 0, 2, 0}, [5]string{"False", "True", "False", "Upgrading", "4 of 6 proxies are ready and of this version; nodes: 2"}},
		"one is paused":          {[]NodeCount{done, paused}, [5]int32{6, 4, 1, 2, 1}, [5]string{"False", "False", "True", "Paused", "4 of 6 proxies are ready and of this version; nodes: 2, 1 paused; failed: 1, see the ManagedProxy shop/cart"}},
		"one is paused, one not": {[]NodeCount{paused, going}, [5]int32{6, 2, 1, 2, 1}, [5]string{"False", "True", "True", "Paused", "2 of 6 proxies are ready and of this version; nodes: 2, 1 paused; failed: 1, see the ManagedProxy shop/cart"}},
		"a pod is refused":       {[]NodeCount{done, refused}, [5]int32{6, 5, 1, 2, 0}, [5]string{"False", "False", "True", "Failed", "5 of 6 proxies are ready and of this version; nodes: 2; failed: 1, see the ManagedProxy shop/cart"}},
		"one is tried, no pause": {[]NodeCount{tried}, [5]int32{3, 1, 1, 1, 0}, [5]string{"False", "True", "True", "Failed", "1 of 3 proxies are ready and of this version; nodes: 1; failed: 1, see the ManagedProxy shop/cart"}},
		"a thousand nodes":       {many, [5]int32{3000, 3000, 0, 1000, 0}, [5]string{"True", "True", "False", "Upgraded", "3000 of 3000 proxies are ready and of this version; nodes: 1000"}},
	} {
		t.Run(name, func(t *testing.T) {
			status := StatusOf(&v1alpha1.ProxyProfile{ObjectMeta: metav1.ObjectMeta{Generation: 5}}, nodesOf(c.nodes...), "shop/cart", nil)
			got := status.Conditions
			if counts := [5]int32{status.Pods, status.Upgraded, status.Failed, status.NodeCount, status.NodesPaused}; counts != c.counts || status.ObservedGeneration != 5 || len(got) != 3 {
				t.Fatalf("%+v", status)
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
func TestStatusOf_nothingChanged_keepsTransitionTime(t *testing.T) {
	p := &v1alpha1.ProxyProfile{ObjectMeta: metav1.ObjectMeta{Generation: 5}}
	done := nodesOf(NodeCount{Pods: 1, Upgraded: 1})
	p.Status = StatusOf(p, done, "", nil)
	long := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	for i := range p.Status.Conditions {
		p.Status.Conditions[i].LastTransitionTime = long
	}
	if diff := cmp.Diff(p.Status, StatusOf(p, done, "", nil)); diff != "" {
		t.Errorf("-before +after:\n%s", diff)
	}
	p.Generation = 6
	after := StatusOf(p, nodesOf(NodeCount{Pods: 1}), "", nil).Conditions
	if c := after[2]; c.Status != metav1.ConditionFalse || c.ObservedGeneration != 6 || c.LastTransitionTime == long {
		t.Errorf("Upgraded is %+v", c)
	}
	if c := after[1]; c.Status != metav1.ConditionTrue || c.ObservedGeneration != 6 || c.LastTransitionTime != long {
		t.Errorf("Progressing is %+v", c)
	}
	if before := p.Status.Conditions[2]; before.Status != metav1.ConditionTrue {
		t.Errorf("the profile itself was changed: %+v", before)
	}
}

// Nodes that are held back go on by themselves as long as the nodes that they wait for do.
func TestStatusOf_nodesHeldBack_saysWhetherTheyGoOn(t *testing.T) {
	for name, c := range map[string]struct {
		paused bool
		change func(*fleet)
		want   string // Progressing, reason, message
	}{
		"they wait for others":                {change: func(*fleet) {}, want: "True Upgrading 0 of 8 proxies are ready and of this version; nodes: 4, 3 held back"},
		"the profile is paused":               {paused: true, change: func(*fleet) {}, want: "False Paused 0 of 8 proxies are ready and of this version; nodes: 4, 4 held back"},
		"the first node is":                   {change: func(f *fleet) { f.some(1, fails) }, want: "False Paused 0 of 8 proxies are ready and of this version; nodes: 4, 1 paused, 3 held back; failed: 1, see the ManagedProxy "},
		"they wait for a pod that has failed": {change: func(f *fleet) { f.some(1, func(n *NodeCount) { n.Upgraded, n.Failed = 1, 1 }) }, want: "False Failed 1 of 8 proxies are ready and of this version; nodes: 4, 3 held back; failed: 1, see the ManagedProxy "},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(4, v1alpha1.Rollout{MaxNodes: 1, Paused: c.paused})
			f.count()
			c.change(f)
			f.count()
			progressing := f.profile.Status.Conditions[1]
			if got := fmt.Sprint(progressing.Status, " ", progressing.Reason, " ", progressing.Message); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
