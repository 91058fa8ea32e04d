package sidecars

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/sidecar"
)

// upgrade changes the profile.
func (n *fakeNode) upgrade(m *Manager) {
	n.change(func() { n.profile.Spec.Image = "localhost/haproxy:2" })
	m.Notify("edge")
}

func (n *fakeNode) mustSay(t *testing.T, uid string, state v1alpha1.State, ready bool) Status {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if got := n.said[uid]; got.State != state || got.Ready != ready {
		t.Errorf("the ManagedProxy says %+v, want %s, ready %v", got, state, ready)
	}
	return n.said[uid]
}

func TestManager_profileChanges_upgradesProxy(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		m.Follow(sandboxOf("u1"))
		n.after(100 * time.Millisecond)
		n.mustSay(t, "u1", v1alpha1.Starting, false)
		n.after(time.Second)
		n.mustSay(t, "u1", v1alpha1.Running, true)
		n.after(10 * time.Minute)
		if n.tidied < 15 || n.tidied > 25 {
			t.Errorf("its log was looked at %d times in 10 minutes", n.tidied)
		}
		if n.calls != 2 {
			t.Errorf("%d calls changed something for a proxy that is well", n.calls)
		}
		n.upgrade(m)
		n.after(100 * time.Millisecond)
		n.mustSay(t, "u1", v1alpha1.Upgrading, true)
		n.after(time.Minute)
		said := n.mustSay(t, "u1", v1alpha1.Running, true)
		if said.Image != "localhost/haproxy:2" || said.Epoch != 1 || said.LastUpgrade.IsZero() || said.Restarts != 0 || said.Message != "" {
			t.Errorf("after the upgrade: %+v", said)
		}
		if got := n.containers["c002"]; len(n.containers) != 1 || got == nil || got.from != "/run/sidecar/handover-0.sock" {
			t.Errorf("containers %v", n.containers)
		}
		stop()
	})
}

func TestManager_proxyEnds_isStartedAgain(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		n.end("c001", 139)
		n.after(time.Second)
		said := n.mustSay(t, "u1", v1alpha1.Running, true)
		if said.Restarts != 1 || !strings.Contains(said.Message, "exit code 139") || said.Epoch != 1 {
			t.Errorf("after the crash: %+v", said)
		}
		n.after(2 * time.Minute)
		if said := n.mustSay(t, "u1", v1alpha1.Running, true); said.Message != "" {
			t.Errorf("long after the crash: %+v", said)
		}
		stop()
	})
}

// The pause begins with a proxy's end, not when a slow runtime has told of it.
func TestManager_proxyEnds_slowRuntimeAddsNoPause(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		defer stop()
		m.Runtime = slowly{fakeNode: n, lists: firstPause}
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		n.end("c001", 139)
		n.after(2*firstPause - time.Millisecond)
		if got := n.running(); !slices.Equal(got, []string{"c002"}) {
			t.Errorf("then run %v", got)
		}
	})
}

// The pause between two starts of a proxy that always ends grows to ten seconds.
func TestManager_proxyAlwaysEnds_isStartedWithPauses(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.behave = func(p *fakeProxy) { p.exit = 1 }
		m, stop := agent()
		m.Follow(sandboxOf("u1"))
		n.after(5 * time.Minute)
		if n.next < 30 || n.next > 45 {
			t.Errorf("started %d times in 5 minutes", n.next)
		}
		n.mustSay(t, "u1", v1alpha1.Failed, false)
		n.change(func() { n.behave = func(*fakeProxy) {} })
		n.after(15 * time.Second)
		n.mustSay(t, "u1", v1alpha1.Running, true)
		stop()
	})
}

func TestManager_upgradeFails_oldProxyStays(t *testing.T) {
	for name, behave := range map[string]func(*fakeProxy){
		"it hangs":  func(p *fakeProxy) { p.readyAfter = -1 },
		"it ends":   func(p *fakeProxy) { p.exit = 1 },
		"it cannot": nil,
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
				m, stop := agent()
				m.Follow(sandboxOf("u1"))
				n.after(time.Second)
				n.change(func() {
					n.behave = behave
					if behave == nil {
						n.failures["pull"] = errors.New("no such image")
					}
				})
				n.upgrade(m)
				n.after(2 * time.Minute)
				if !slices.Contains(n.running(), "c001") || n.containers["c001"].drained {
					t.Errorf("the old proxy does not serve: %v run", n.running())
				}
				n.mu.Lock()
				said := n.said["u1"]
				n.mu.Unlock()
				if !said.Ready || said.Image != "localhost/haproxy:1" || said.Message == "" {
					t.Errorf("the ManagedProxy says %+v", said)
				}
				n.change(func() { n.behave = func(*fakeProxy) {}; delete(n.failures, "pull") })
				n.after(time.Minute)
				if said := n.mustSay(t, "u1", v1alpha1.Running, true); said.Image != "localhost/haproxy:2" {
					t.Errorf("when it can: %+v", said)
				}
				stop()
			})
		})
	}
}

// Wherever the agent is killed, right after a call or right before the next one, its successor ends with one proxy of the version that is wanted,
// and nothing else. A proxy that was to be told to drain is told, and its end is no failure.
func TestManager_killedBetweenCalls_nextAgentFinishes(t *testing.T) {
	for name, prepare := range map[string]func(*fakeNode){"haproxy": func(*fakeNode) {}, "reuse-port": (*fakeNode).sharePorts, "istio": withMesh} {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, late %v", name, late), func(t *testing.T) { killEverywhere(t, late, prepare) })
		}
	}
}

func killEverywhere(t *testing.T, late bool, prepare func(*fakeNode)) {
	t.Helper()
	kill, survived := 0, false
	for !survived && !t.Failed() {
		kill++
		bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
			prepare(n)
			n.late = late
			survived = n.upgradeKilled(t, kill, agent)
		})
	}
	if kill < 7 {
		t.Errorf("only %d calls were tried", kill-1)
	}
}

// upgradeKilled upgrades a proxy by an agent that is killed, and another one after it. It reports whether the first one made fewer calls.
func (n *fakeNode) upgradeKilled(t *testing.T, kill int, agent func() (*Manager, func())) (survived bool) {
	t.Helper()
	n.profile.Spec.Rollout.DrainSeconds = 600 // a proxy that nobody tells runs on
	m, stop := agent()
	m.Follow(sandboxOf("u1"))
	n.change(func() { n.killAfter = kill })
	n.after(time.Second)
	n.upgrade(m)
	n.after(time.Minute)
	n.change(func() { survived = n.calls < kill })
	stop()
	n.change(func() { n.killAfter = 0; n.profile.Spec.Image = "localhost/haproxy:2" })
	m, stop = agent()
	defer stop()
	m.Follow(sandboxOf("u1"))
	n.after(10 * time.Second)
	said := n.mustSay(t, "u1", v1alpha1.Running, true)
	if got := n.running(); len(got) != 1 || len(n.containers) != 1 || said.Image != "localhost/haproxy:2" || said.Restarts != 0 || said.Failure != "" {
		t.Errorf("killed after call %d: %v run of %d containers, and the ManagedProxy says %+v", kill, got, len(n.containers), said)
	}
	return survived
}

// One proxy after the other, and no more once one has failed.
func TestRollouts_maxParallel_isHeld(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		uids := []string{"u1", "u2", "u3", "u4", "u5", "u6"}
		m, stop := agent()
		for _, uid := range uids {
			m.Follow(sandboxOf(uid))
		}
		n.after(2 * time.Second)
		n.change(func() { n.behave = func(p *fakeProxy) { p.readyAfter = -1 } })
		n.upgrade(m)
		n.after(5 * time.Second)
		if got := len(n.running()) - len(uids); got != 2 {
			t.Errorf("%d proxies are upgraded at once", got)
		}
		n.after(5 * time.Minute)
		if got := len(n.running()) - len(uids); got > 2 {
			t.Errorf("%d proxies are upgraded at once after the first have failed", got)
		}
		n.change(func() { n.behave = func(p *fakeProxy) { p.readyAfter = 200 * time.Millisecond } })
		n.after(2 * time.Minute)
		for _, uid := range uids {
			if said := n.mustSay(t, uid, v1alpha1.Running, true); said.Image != "localhost/haproxy:2" {
				t.Errorf("%s: %+v", uid, said)
			}
		}
		stop()
	})
}

func TestStep_choiceChanges_isFollowed(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(*fakeNode)
		running int
		state   v1alpha1.State
	}{
		"it opts out":           {func(n *fakeNode) { n.chosen = "" }, 0, ""},
		"no proxy while pulled": {func(n *fakeNode) { n.pulling = true; n.profile.Spec.Image = "localhost/haproxy:2" }, 1, v1alpha1.Upgrading},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
				m, stop := agent()
				m.Follow(sandboxOf("u1"))
				n.after(time.Second)
				n.change(func() { c.change(n) })
				m.Notify("")
				n.after(time.Minute)
				if got := n.running(); len(got) != c.running {
					t.Errorf("%v run", got)
				}
				if c.state != "" {
					n.mustSay(t, "u1", c.state, true)
				}
				stop()
			})
		})
	}
}

// A sandbox that is made anew gets a proxy of its own, and nothing of the old one is left.
func TestFollow_newSandbox_isNewCase(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		n.end("c001", 137) // with its sandbox
		next := sandboxOf("u1")
		next.ID = "sandbox-new"
		m.Follow(next)
		n.after(time.Second)
		c := n.containers["c002"]
		if c == nil || c.State != sidecar.Running || c.Sandbox != "sandbox-new" || c.from != "" {
			t.Errorf("containers %+v", n.containers)
		}
		n.after(time.Minute)
		if len(n.containers) != 1 {
			t.Errorf("%d containers are left", len(n.containers))
		}
		stop()
	})
}
