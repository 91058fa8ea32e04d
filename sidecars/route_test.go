package sidecars

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"istio-pod-network-controller/api/v1alpha1"
)

// madeAnew deletes the profile, and makes it anew under its name, with other ports and, as root, another user.
func (n *fakeNode) madeAnew(m *Manager) {
	n.change(func() {
		n.earlier = append(n.earlier, n.profile.Spec)
		n.profile.Generation = 1
		n.profile.Spec.Network = v1alpha1.Network{OutboundPort: 15011, InboundPort: 15016}
		if os.Getuid() == 0 {
			n.profile.Spec.RunAsUser++
		}
	})
	m.Notify("edge")
}

// Rules lead to the proxy that serves, whatever the profile says by now: to its successor once that does.
func TestRoute_profileMadeAnew_rulesFollowTheProxy(t *testing.T) {
	for name, slow := range map[string]time.Duration{"rules at once": 0, "rules take a while": 3 * time.Second} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
				m, stop := agent()
				defer stop()
				uids := followMany(m, 3)
				n.after(10 * time.Second)
				n.change(func() { n.slow = slow })
				n.madeAnew(m)
				n.after(2 * time.Minute)
				n.mustServe(t, uids, 1)
				for _, uid := range uids {
					if r := n.rules[sandboxOf(uid).Key()]; r.now.OutboundPort != 15011 || int64(r.now.UID) != n.profile.Spec.RunAsUser || len(r.now.Beside) > 0 {
						t.Errorf("%s: the rules know %+v", uid, r.now)
					}
				}
			})
		})
	}
}

// A pod whose rules do not follow holds up nobody: it is looked at now and then, says why its proxy is the old one, and others have its upgrade slot.
func TestRoute_rulesStay_othersAreUpgraded(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.profile.Spec.Rollout.MaxParallel = 1
		m, stop := agent()
		defer stop()
		uids := followMany(m, 4)
		n.after(10 * time.Second)
		n.change(func() { n.asks, n.stuck = 0, map[string]bool{uids[0]: true, uids[1]: true} })
		n.madeAnew(m)
		n.after(2 * time.Minute)
		n.mustServe(t, uids[2:], 1)
		for _, uid := range uids[:2] {
			if said := n.mustSay(t, uid, v1alpha1.Upgrading, true); !strings.Contains(said.Message, "the pod's rules do not lead to its next proxy") || said.FailedHash != n.profile.Spec.Hash() {
				t.Errorf("%s: %+v", uid, said)
			}
		}
		if m.Rollout.Paused("edge") || n.asks > 600 {
			t.Errorf("paused: %t; the runtime was asked %d times", m.Rollout.Paused("edge"), n.asks)
		}
	})
}

// A profile made anew that does not work has no effect on a pod: its proxy serves, rules lead to it, and a proxy that takes its place is as it was.
func TestRoute_profileMadeAnewFails_rulesStay(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		defer stop()
		uids := followMany(m, 3)
		n.after(10 * time.Second)
		n.change(func() { n.behave = func(p *fakeProxy) { p.readyAfter, p.drains = 200*time.Millisecond, time.Second } })
		n.change(func() {
			n.behave = func(p *fakeProxy) {
				p.readyAfter, p.drains = 200*time.Millisecond, time.Second
				if n.made(p).OutboundPort != 15001 {
					endsAtOnce(p)
				}
			}
		})
		n.madeAnew(m)
		n.after(time.Minute)
		n.endAll()
		n.after(time.Minute)
		for _, uid := range uids {
			said := n.said[uid]
			if r := n.rules[sandboxOf(uid).Key()]; r.now.OutboundPort != 15001 || int64(r.now.UID) != int64(os.Getuid()) || !said.Ready {
				t.Errorf("%s: the rules know %+v, said is %+v", uid, r.now, said)
			}
		}
	})
}

// Whenever an agent is killed while a pod changes over to other ports and another user, the next one goes on.
func TestRoute_agentIsKilled_nextOneGoesOn(t *testing.T) {
	for kill, survived := 1, false; !survived && !t.Failed(); kill++ {
		t.Run(fmt.Sprint("after call ", kill), func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
				m, stop := agent()
				m.Follow(sandboxOf("u1"))
				n.after(10 * time.Second)
				stop()
				n.change(func() { n.slow, n.killAfter = time.Second, kill })
				m, stop = agent()
				m.Follow(sandboxOf("u1"))
				n.madeAnew(m)
				n.after(time.Minute)
				stop()
				n.change(func() { survived, n.killAfter = n.calls < kill, 0 })
				m, stop = agent()
				m.Follow(sandboxOf("u1"))
				n.after(2 * time.Minute)
				n.mustServe(t, []string{"u1"}, 1)
				if r := n.rules[sandboxOf("u1").Key()]; r.now.OutboundPort != 15011 || len(r.now.Beside) > 0 {
					t.Errorf("the rules know %+v", r.now)
				}
				stop()
			})
		})
	}
}
