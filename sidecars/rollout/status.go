package rollout

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/printable"
)

// StatusOf returns what a profile's status should be by the counts of its nodes. failed is one of the pods that have failed, or "".
// invalid is why the profile cannot be used, or nil. lastTransitionTime changes with a condition's status only.
func StatusOf(p *v1alpha1.ProxyProfile, nodes map[string]NodeCount, failed string, invalid error) v1alpha1.ProxyProfileStatus {
	rollout := nextRollout(p, nodes)
	all := sumUp(nodes, func(node string) bool { return rollout != nil && rolloutSlot(node, rollout.Hash) >= rollout.Admitted })
	bounds := p.Spec.Rollout()
	stays := hasPartition(bounds) && !all.going && all.failed == 0
	all.pod, all.stopped = failed, all.held > 0 && (bounds.Paused || stays)
	all.invalid = invalid
	out := v1alpha1.ProxyProfileStatus{
		ObservedGeneration: p.Generation, Pods: all.pods, Upgraded: all.upgraded, Failed: all.failed, NodeCount: all.nodes, NodesPaused: all.paused, Rollout: rollout,
		Conditions: slices.Clone(p.Status.Conditions),
	}
	for kind, is := range map[string]bool{
		v1alpha1.ConditionUpgraded: all.complete(), v1alpha1.ConditionProgressing: invalid == nil && (all.going || all.complete()),
		v1alpha1.ConditionFailed: invalid != nil || all.failed > 0,
	} {
		status := metav1.ConditionFalse
		if is {
			status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&out.Conditions, metav1.Condition{
			Type: kind, Status: status, ObservedGeneration: p.Generation, Reason: all.reason(), Message: all.message(),
		})
	}
	slices.SortFunc(out.Conditions, func(a, b metav1.Condition) int { return cmp.Compare(a.Type, b.Type) })
	return out
}

// progress is how far the present version has reached all nodes.
type progress struct {
	nodes, pods, upgraded, failed int32
	paused                        int32  // nodes
	going                         bool   // there are proxies that will be upgraded by themselves; nodes that are held wait for these
	held                          int32  // nodes with proxies that will be upgraded once the node may use the version
	stopped                       bool   // the profile has these wait
	pod                           string // a pod whose proxy has failed
	invalid                       error  // why the profile cannot be used
}

func sumUp(nodes map[string]NodeCount, held func(node string) bool) progress {
	out := progress{nodes: int32(len(nodes))}
	for name, n := range nodes {
		out.pods += n.Pods
		out.upgraded += n.Upgraded
		out.failed += n.Failed
		switch left := n.Upgraded+n.Failed < n.Pods; {
		case n.Paused:
			out.paused++
		case left && held(name):
			out.held++
		case left:
			out.going = true
		}
	}
	return out
}

func (a progress) complete() bool { return a.invalid == nil && a.upgraded == a.pods }

func (a progress) reason() string {
	switch {
	case a.invalid != nil:
		return v1alpha1.ReasonInvalid
	case a.pods == 0:
		return v1alpha1.ReasonNoPods
	case a.complete():
		return v1alpha1.ReasonUpgraded
	case a.paused > 0, a.stopped:
		return v1alpha1.ReasonPaused
	case a.failed > 0:
		return v1alpha1.ReasonFailed
	}
	return v1alpha1.ReasonUpgrading
}

func (a progress) message() string {
	if a.invalid != nil {
		return printable.Clip(a.invalid.Error(), v1alpha1.MaxMessage)
	}
	if a.pods == 0 {
		return "no pod has chosen the profile"
	}
	out := fmt.Sprintf("%d of %d proxies are ready and of this version; nodes: %d", a.upgraded, a.pods, a.nodes)
	if a.paused > 0 {
		out += fmt.Sprintf(", %d paused", a.paused)
	}
	if a.held > 0 {
		out += fmt.Sprintf(", %d held back", a.held)
	}
	if a.failed > 0 {
		out += fmt.Sprintf("; failed: %d, see the ManagedProxy %s", a.failed, a.pod)
	}
	return out
}
