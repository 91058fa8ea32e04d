package sidecars

import (
	"testing"
	"time"
)

func TestAProfileShowsHowFarItIs(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) { //nolint:thelper // it is the test itself
		m, stop := agent()
		for _, uid := range []string{"u1", "u2", "u3"} {
			m.Follow(sandboxOf(uid))
		}
		after(2 * time.Second)
		n.mustSum(t, Summary{Generation: 1, Pods: 3, Upgraded: 3})
		n.change(func() { n.behave = func(p *fakeProxy) { p.readyAfter = -1 }; n.profile.Generation = 2 })
		n.upgrade(m)
		after(30 * time.Second)
		n.mustSum(t, Summary{Generation: 2, Pods: 3, Failed: 2, Paused: true})
		n.change(func() { n.behave = func(*fakeProxy) {} })
		after(time.Minute)
		n.mustSum(t, Summary{Generation: 2, Pods: 3, Upgraded: 3})
		m.Unfollow("u3")
		after(time.Second)
		n.mustSum(t, Summary{Generation: 2, Pods: 2, Upgraded: 2})
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
