package sidecars

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"istio-pod-network-controller/api/v1alpha1"
)

func TestSummarize_upgrade_countsProxies(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		for _, uid := range []string{"u1", "u2", "u3"} {
			m.Follow(sandboxOf(uid))
		}
		after(2 * time.Second)
		n.mustSum(t, Summary{Generation: 1, Pods: 3, Upgraded: 3})
		n.change(func() { n.behave = func(p *fakeProxy) { p.readyAfter = -1 }; n.profile.Generation = 2 })
		n.upgrade(m)
		after(30 * time.Second)
		n.mustSum(t, Summary{Generation: 2, Pods: 3, Failed: 3, Paused: true})
		n.change(func() { n.behave = func(*fakeProxy) {} })
		after(time.Minute)
		n.mustSum(t, Summary{Generation: 2, Pods: 3, Upgraded: 3})
		m.Unfollow("u3")
		after(time.Second)
		n.mustSum(t, Summary{Generation: 2, Pods: 2, Upgraded: 2})
		stop()
	})
}

// A node says that it has reached a version only of proxies that were looked at since.
func TestSumOf_proxies_areCounted(t *testing.T) {
	up := shown{generation: 5, upgraded: true}
	for name, c := range map[string]struct {
		all  []shown
		want Summary
	}{
		"none":                     {nil, Summary{}},
		"all are":                  {[]shown{up, up}, Summary{Generation: 5, Pods: 2, Upgraded: 2}},
		"one starts":               {[]shown{up, {generation: 5}}, Summary{Generation: 5, Pods: 2, Upgraded: 1}},
		"one is of an old version": {[]shown{{generation: 4, upgraded: true}, up}, Summary{Generation: 5, Pods: 2, Upgraded: 1}},
		"one has failed before":    {[]shown{{generation: 4, failed: true, message: "a"}, up}, Summary{Generation: 5, Pods: 2, Upgraded: 1}},
		"one has failed":           {[]shown{{generation: 5, failed: true, message: "b"}, up}, Summary{Generation: 5, Pods: 2, Upgraded: 1, Failed: 1, Message: "b"}},
		"two have failed": {
			[]shown{{generation: 5, failed: true, message: "b"}, {generation: 5, failed: true, message: "a"}, {generation: 5, failed: true, message: "c"}},
			Summary{Generation: 5, Pods: 3, Failed: 3, Message: "a"},
		},
	} {
		if diff := cmp.Diff(c.want, sumOf(c.all)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// A pod that can no longer have a proxy counts as failed although the proxy that it has runs on.
func TestSummarize_refusedPod_countsAsFailed(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		m.Follow(sandboxOf("u1"))
		after(time.Second)
		n.change(func() { n.refusal = "the pod is on the host's network"; n.profile.Generation = 2 })
		m.Notify("edge")
		after(time.Second)
		n.mustSum(t, Summary{Generation: 2, Pods: 1, Failed: 1})
		n.mustSay(t, "u1", v1alpha1.Running, true)
		stop()
	})
}

// mustSum wants a summary, with a message if some pods have failed.
func (n *fakeNode) mustSum(t *testing.T, want Summary) {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	got := n.sum
	if (got.Message == "") != (want.Failed == 0) {
		t.Errorf("the message is %q", got.Message)
	}
	got.Message = ""
	if got != want {
		t.Errorf("the profile's status is %+v, want %+v", got, want)
	}
}
