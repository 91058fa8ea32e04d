package sidecars

import (
	"testing"
	"time"
)

// hold says whether the node may use the profile's present version.
func (n *fakeNode) hold(m *Manager, held bool) {
	n.change(func() { n.held = held })
	m.Notify("edge")
}

// A node that is held upgrades nothing, and starts proxies of the version that works, until it no longer is.
func TestManager_nodeIsHeld_keepsLastVersion(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		uids := followMany(m, 4)
		n.after(2 * time.Second)
		n.hold(m, true)
		n.changeTo(m, 2)
		n.after(time.Minute)
		n.mustServe(t, uids, 1)
		for _, id := range n.running() {
			n.end(id, 0)
		}
		n.after(20 * time.Second) // nobody serves meanwhile: none may be the first that tries it
		stop()
		m, stop = agent()
		uids = followMany(m, 5) // the fifth is new
		n.after(5 * time.Minute)
		for _, uid := range uids {
			if said := n.said[uid]; said.Image != image(1) || !said.Ready {
				t.Errorf("%s: %+v", uid, said)
			}
		}
		before := n.said["u1"].Epoch
		n.change(func() { n.wish = Wish("again") })
		m.Notify("edge")
		n.after(time.Minute)
		if said := n.said["u1"]; said.Image != image(1) || !said.Ready || said.Epoch == before {
			t.Errorf("after a wish for a new proxy: %+v", said)
		}
		n.hold(m, false)
		n.after(time.Minute)
		for _, uid := range uids {
			if said := n.said[uid]; said.Image != image(2) || !said.Ready {
				t.Errorf("%s: %+v", uid, said)
			}
		}
		stop()
	})
}

// A node that is held although it knows no version that works starts the present one.
func TestManager_heldNodeKnowsNoVersion_startsPresent(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.held = true
		m, stop := agent()
		uids := followMany(m, 2)
		n.after(2 * time.Second)
		n.mustServe(t, uids, 1)
		stop()
	})
}
