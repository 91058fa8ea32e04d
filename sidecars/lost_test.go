package sidecars

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// The kubelet removes containers that have ended, and may be faster than the agent.
func TestNoteLost_kubeletRemovedContainer_isNoted(t *testing.T) {
	const unknown = "it has ended, and the runtime no longer knows how"
	for name, c := range map[string]struct {
		behave   func(*fakeProxy)
		before   func(*fakeNode, *Manager)
		restarts int32
		why      string
	}{
		"it was ready":     {restarts: 1, why: unknown},
		"it was not ready": {behave: func(p *fakeProxy) { p.readyAfter = -1 }, why: unknown},
		"it hung, and was ended for it": {
			behave: func(p *fakeProxy) { p.readyAfter = -1 },
			before: func(n *fakeNode, _ *Manager) {
				n.change(func() { n.failures["remove"] = errors.New("not now") })
				n.after(11 * time.Second)
			},
			why: "it was not ready within 10s: connection refused",
		},
		"its pod is being deleted": {before: func(n *fakeNode, m *Manager) {
			n.change(func() { n.ending = true })
			m.Notify("")
		}},
		"it drained": {behave: func(p *fakeProxy) { p.drains = -1 }, before: func(n *fakeNode, m *Manager) { n.upgrade(m) }},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
				if c.behave != nil {
					n.behave = c.behave
				}
				m, stop := agent()
				defer stop()
				m.Follow(sandboxOf("u1"))
				n.after(time.Second)
				if c.before != nil {
					c.before(n, m)
					n.after(time.Second)
				}
				n.change(func() { delete(n.containers, "c001") })
				n.after(3 * time.Second)
				n.change(func() {
					if said := n.said["u1"]; said.Restarts != c.restarts || said.Failure != c.why {
						t.Errorf("the ManagedProxy says %+v", said)
					}
				})
			})
		})
	}
}

// How a proxy ended is said once, also if its container stays, and as what it was.
func TestNoteEnds_sameEnd_isNotedOnce(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		defer stop()
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		n.change(func() { n.failures["remove"] = errors.New("not now") })
		n.end("c001", 139)
		n.after(10 * time.Second)
		n.change(func() {
			if said := n.said["u1"]; said.Restarts != 1 || !strings.Contains(said.Failure, "exit code 139") {
				t.Errorf("the ManagedProxy says %+v", said)
			}
			delete(n.containers, "c001") // by the kubelet
		})
		n.after(3 * time.Second)
		n.change(func() {
			if said := n.said["u1"]; said.Restarts != 1 || !strings.Contains(said.Failure, "exit code 139") {
				t.Errorf("once it is gone, the ManagedProxy says %+v", said)
			}
		})
	})
}

// One that hangs and is ended for it has not ended by itself. One that ends at its start has not been restarted.
func TestStatus_proxyDoesNotStart_saysWhy(t *testing.T) {
	for name, c := range map[string]struct {
		behave  func(*fakeProxy)
		want    string
		notWant string
	}{
		"it hangs": {func(p *fakeProxy) { p.readyAfter = -1 }, "it was not ready within 10s: connection refused", "exit code"},
		"it ends":  {func(p *fakeProxy) { p.exit = 7 }, "exit code 7", "not ready"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
				n.behave = c.behave
				m, stop := agent()
				defer stop()
				m.Follow(sandboxOf("u1"))
				n.after(11 * time.Second)
				n.change(func() {
					if said := n.said["u1"]; said.Restarts != 0 || !strings.Contains(said.Failure, c.want) || strings.Contains(said.Failure, c.notWant) {
						t.Errorf("the ManagedProxy says %+v", said)
					}
				})
			})
		})
	}
}

// A new version that ends at its start pauses the upgrades, as one that hangs does.
func TestRollouts_proxyEnds_pausesUpgrades(t *testing.T) {
	for name, fails := range map[string]func(*fakeNode){
		"it cannot be started":   func(n *fakeNode) { n.failures["create"] = errors.New("not now") },
		"its image is not there": func(n *fakeNode) { n.failures["pull"] = errors.New("no such image") },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
				m, stop := agent()
				defer stop()
				for _, uid := range []string{"u1", "u2", "u3"} {
					m.Follow(sandboxOf(uid))
				}
				n.after(2 * time.Second)
				n.change(func() { fails(n) })
				n.upgrade(m)
				n.after(30 * time.Second)
				n.change(func() {
					if s := n.sum(); !s.Paused || s.Failed != 3 || s.Upgraded != 0 {
						t.Errorf("the profile's status is %+v", s)
					}
				})
			})
		})
	}
}
