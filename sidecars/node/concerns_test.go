package node

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/sidecars/profile"
)

// Every agent receives each status of a profile, and looks at its pods only if it says something else to its node.
func TestConcernsNode_statusChanges_onlyAdmissionPasses(t *testing.T) {
	spec := v1alpha1.ProxyProfileSpec{Istio: &v1alpha1.Istio{Update: v1alpha1.IstioUpdate{Rollout: v1alpha1.Rollout{MaxNodes: 1}}}}
	of := func(hash string, admitted int32) *v1alpha1.RolloutStatus {
		return &v1alpha1.RolloutStatus{Hash: hash, Admitted: admitted}
	}
	hash := profile.HashOf(spec)
	for name, c := range map[string]struct {
		before, after v1alpha1.ProxyProfileStatus
		generation    int64
		want          bool
	}{
		"counts":                         {v1alpha1.ProxyProfileStatus{Pods: 1}, v1alpha1.ProxyProfileStatus{Pods: 2}, 1, false},
		"counts of an admitted node":     {v1alpha1.ProxyProfileStatus{Rollout: of(hash, 65536)}, v1alpha1.ProxyProfileStatus{Rollout: of(hash, 65536), Pods: 2}, 1, false},
		"the spec":                       {v1alpha1.ProxyProfileStatus{}, v1alpha1.ProxyProfileStatus{}, 2, true},
		"the node is admitted":           {v1alpha1.ProxyProfileStatus{Rollout: of(hash, 0)}, v1alpha1.ProxyProfileStatus{Rollout: of(hash, 65536)}, 1, true},
		"the node is admitted at first":  {v1alpha1.ProxyProfileStatus{}, v1alpha1.ProxyProfileStatus{Rollout: of(hash, 65536)}, 1, true},
		"the node still waits":           {v1alpha1.ProxyProfileStatus{}, v1alpha1.ProxyProfileStatus{Rollout: of(hash, 0)}, 1, false},
		"another version is admitted":    {v1alpha1.ProxyProfileStatus{}, v1alpha1.ProxyProfileStatus{Rollout: of("another", 65536)}, 1, false},
		"somebody takes it away":         {v1alpha1.ProxyProfileStatus{Rollout: of(hash, 65536)}, v1alpha1.ProxyProfileStatus{}, 1, true},
		"more nodes, with the node's in": {v1alpha1.ProxyProfileStatus{Rollout: of(hash, 65535)}, v1alpha1.ProxyProfileStatus{Rollout: of(hash, 65536)}, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			before := &v1alpha1.ProxyProfile{ObjectMeta: metav1.ObjectMeta{Generation: 1}, Spec: spec, Status: c.before}
			after := &v1alpha1.ProxyProfile{ObjectMeta: metav1.ObjectMeta{Generation: c.generation}, Spec: spec, Status: c.after}
			if got := concernsNode("n1").Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}); got != c.want {
				t.Errorf("passes: %t, want %t", got, c.want)
			}
		})
	}
	if !concernsNode("n1").Create(event.CreateEvent{Object: &v1alpha1.ProxyProfile{}}) || !concernsNode("n1").Delete(event.DeleteEvent{Object: &v1alpha1.ProxyProfile{}}) {
		t.Error("a profile comes or goes unseen")
	}
}
