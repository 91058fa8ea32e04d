package sidecars

import (
	"testing"
	"time"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/sidecars/rollout"
)

func TestReport_upgrade_countsProxies(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		for _, uid := range []string{"u1", "u2", "u3"} {
			m.Follow(sandboxOf(uid))
		}
		n.after(2 * time.Second)
		n.mustSum(t, rollout.NodeCount{Pods: 3, Upgraded: 3})
		n.change(func() { n.behave = func(p *fakeProxy) { p.readyAfter = -1 } })
		n.upgrade(m)
		n.after(30 * time.Second)
		n.mustSum(t, rollout.NodeCount{Pods: 3, Failed: 3, Paused: true})
		n.change(func() { n.behave = func(*fakeProxy) {} })
		n.after(time.Minute)
		n.mustSum(t, rollout.NodeCount{Pods: 3, Upgraded: 3})
		m.Unfollow("u3")
		n.after(time.Second)
		n.mustSum(t, rollout.NodeCount{Pods: 2, Upgraded: 2})
		stop()
	})
}

// A pod that can no longer have a proxy counts as failed although the proxy that it has runs on.
func TestReport_refusedPod_countsAsFailed(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		n.change(func() { n.refusal = "the pod is on the host's network" })
		m.Notify("edge")
		n.after(time.Second)
		n.mustSum(t, rollout.NodeCount{Pods: 1, Failed: 1})
		n.mustSay(t, "u1", v1alpha1.Running, true)
		stop()
	})
}

// mustSum wants pods to be reported so that the profile's status counts them so.
func (n *fakeNode) mustSum(t *testing.T, want rollout.NodeCount) {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if got := n.sum(); got != want {
		t.Errorf("the profile's status is %+v, want %+v", got, want)
	}
}
