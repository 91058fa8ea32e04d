package sidecars

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/api/v1alpha1"
)

// Conditions returns what a profile's conditions should be by what its nodes have written. lastTransitionTime changes with a status only.
func Conditions(p *v1alpha1.ProxyProfile) []metav1.Condition {
	all := sumUp(p)
	out := slices.Clone(p.Status.Conditions)
	for kind, status := range map[string]metav1.ConditionStatus{
		v1alpha1.ConditionUpgraded: all.upgradedStatus(), v1alpha1.ConditionProgressing: statusOf(all.going || all.complete()),
		v1alpha1.ConditionFailed: statusOf(all.failed > 0),
	} {
		meta.SetStatusCondition(&out, metav1.Condition{
			Type: kind, Status: status, ObservedGeneration: p.Generation, Reason: all.reason(), Message: all.message(),
		})
	}
	slices.SortFunc(out, func(a, b metav1.Condition) int { return cmp.Compare(a.Type, b.Type) })
	return out
}

// progress is how far the present version has reached all nodes.
type progress struct {
	profile                string
	nodes                  int
	pods, upgraded, failed int32
	behind                 []string // nodes whose agents have not seen the version
	paused                 int      // nodes
	going                  bool     // there are proxies that will be upgraded by themselves
	why                    string   // the first failure
}

func sumUp(p *v1alpha1.ProxyProfile) progress {
	out := progress{profile: p.Name, nodes: len(p.Status.Nodes)}
	for _, n := range p.Status.Nodes {
		out.pods += n.Pods
		if n.ObservedGeneration != p.Generation {
			out.behind, out.going = append(out.behind, n.Name), true
			continue
		}
		out.upgraded += n.Upgraded
		out.failed += n.Failed
		out.going = out.going || !n.Paused && n.Upgraded+n.Failed < n.Pods
		if n.Paused {
			out.paused++
		}
		if out.why == "" && n.Failed > 0 {
			out.why = n.Name + ": " + n.Message
		}
	}
	return out
}

// complete reports whether no node that is listed has anything left to do.
func (a progress) complete() bool { return a.upgraded == a.pods && len(a.behind) == 0 }

func (a progress) upgradedStatus() metav1.ConditionStatus {
	if a.reason() == v1alpha1.ReasonTooManyNodes {
		return metav1.ConditionUnknown
	}
	return statusOf(a.complete())
}

func statusOf(is bool) metav1.ConditionStatus {
	if is {
		return metav1.ConditionTrue
	}
	return metav1.ConditionFalse
}

func (a progress) reason() string {
	switch {
	case a.nodes == 0:
		return v1alpha1.ReasonNoPods
	case a.complete() && a.nodes >= v1alpha1.MaxNodes:
		return v1alpha1.ReasonTooManyNodes
	case a.complete():
		return v1alpha1.ReasonUpgraded
	case a.paused > 0:
		return v1alpha1.ReasonPaused
	case a.failed > 0:
		return v1alpha1.ReasonFailed
	}
	return v1alpha1.ReasonUpgrading
}

func (a progress) message() string {
	if a.nodes == 0 {
		return "no pod has chosen the profile"
	}
	out := fmt.Sprintf("%d of %d proxies are ready and of this version; nodes: %d", a.upgraded, a.pods, a.nodes)
	if len(a.behind) > 0 {
		out += fmt.Sprintf(", %d not up to date (%s)", len(a.behind), a.behind[0])
	}
	if a.paused > 0 {
		out += fmt.Sprintf(", %d paused", a.paused)
	}
	if a.failed > 0 {
		out += fmt.Sprintf("; %d failed: %s", a.failed, a.why)
	}
	if a.reason() == v1alpha1.ReasonTooManyNodes {
		out += "; more nodes are not listed: see the ManagedProxies with the label " + v1alpha1.LabelProfile + "=" + a.profile
	}
	return out
}
