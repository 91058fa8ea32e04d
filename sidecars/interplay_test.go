package sidecars

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
)

// ownPort has each proxy answer at the port of its own version of the profile only.
type ownPort struct {
	*fakeNode
	ports map[string]int32 // by image
}

func (q ownPort) Ask(ctx context.Context, s podnet.Sandbox, p *Profile, epoch uint32, to Question) error {
	wrong := false
	q.change(func() {
		for _, c := range q.containers {
			wrong = wrong || c.Sandbox == s.ID && c.Epoch == epoch && q.ports[c.Image] != p.Question(to, epoch).TCPPort
		}
	})
	if wrong {
		return errors.New("connection refused")
	}
	return q.fakeNode.Ask(ctx, s, p, epoch, to)
}

// While a roll-out goes on, older proxies are asked as their own version says: also once the new version works elsewhere on the node, and by an agent
// that starts then.
func TestAsk_newVersionWorksElsewhere_olderProxyIsAskedItsOwnWay(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.behave = only(func(p *fakeProxy) {
			if p.PodUID != "u1" {
				p.readyAfter = -1
			}
		}, image(2))
		asker := ownPort{n, map[string]int32{image(1): 15021, image(2): 15999}}
		m, stop := agent()
		m.Asker = asker
		uids := followMany(m, 3)
		after(time.Second)
		n.change(func() { n.profile.Spec.Readiness.TCPPort = 15999 })
		n.changeTo(m, 2)
		for range 2 {
			after(2 * time.Minute)
			for uid, want := range map[string]int{"u1": 2, "u2": 1, "u3": 1} {
				if said := n.said[uid]; !said.Ready || said.Image != image(want) || said.Epoch > 1 {
					t.Errorf("%s: %+v", uid, said)
				}
			}
			stop()
			m, stop = agent()
			m.Asker = asker
			followMany(m, len(uids))
		}
		stop()
	})
}

// Without a handover nothing is ended before all is there that its successor is made from.
func TestUpgrade_withoutHandoverNothingToStart_oldOneStays(t *testing.T) {
	for name, misses := range map[string]func(*fakeNode){
		"the image is pulled":    func(n *fakeNode) { n.pulling = true },
		"the image is not there": func(n *fakeNode) { n.failures["pull"] = errors.New("no such image") },
		"a file is not rendered": func(n *fakeNode) { n.profile.Spec.Files[0].Template = `{{ slice .Pod.Name 99 }}` },
		"a Secret is missing": func(n *fakeNode) {
			n.profile.Spec.Secrets = []v1alpha1.SecretSource{{Name: "tls", Secret: &v1alpha1.SecretKeys{SecretReference: v1alpha1.SecretReference{Name: "none"}}}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
				n.profile.Spec.Handover = v1alpha1.HandoverNone
				m, stop := agent()
				defer stop()
				m.Follow(sandboxOf("u1"))
				after(time.Second)
				n.change(func() { misses(n) })
				n.changeTo(m, 2)
				after(time.Minute)
				if said := n.said["u1"]; !said.Ready || said.Epoch != 0 || len(n.running()) != 1 || n.next != 1 {
					t.Errorf("%d proxies were made, and the ManagedProxy says %+v", n.next, said)
				}
			})
		})
	}
}

// A proxy that the agent has ended did not end by itself, whichever agent finds it.
func TestStop_agentIsKilledBehindIt_nextAgentStartsProxy(t *testing.T) {
	for kill, survived := 1, false; !survived && !t.Failed(); kill++ {
		bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
			n.profile.Spec.Handover, n.profile.Spec.RestartPolicy = v1alpha1.HandoverNone, restartOnFailure
			m, stop := agent()
			m.Follow(sandboxOf("u1"))
			after(time.Second)
			n.change(func() { n.killAfter, n.wish = n.calls+kill, Wish("a") })
			m.Notify("edge")
			after(time.Minute)
			n.change(func() { survived = n.calls < n.killAfter })
			stop()
			n.change(func() { n.killAfter = 0 })
			m, stop = agent()
			defer stop()
			m.Follow(sandboxOf("u1"))
			after(10 * time.Second)
			said := n.said["u1"]
			for _, c := range n.containers {
				if !said.Ready || said.Restarts != 0 || c.Restart != n.wish {
					t.Errorf("killed after call %d: the ManagedProxy says %+v, and there is %+v", kill, said, c)
				}
			}
		})
	}
}

// twoProfiles is a cluster in which some pods have chosen another profile, of the same words.
type twoProfiles struct {
	*fakeNode
	other map[string]bool // by the pod's UID
}

func (c twoProfiles) Choice(ctx context.Context, s podnet.Sandbox) (Choice, error) {
	out, err := c.fakeNode.Choice(ctx, s)
	c.change(func() {
		if c.other[s.UID] {
			p := *out.Profile
			p.Name, out.Name, out.Profile = "other", "other", &p
		}
	})
	return out, err
}

// A pod that has its turn, and chooses another profile, holds up nobody.
func TestTakeTurn_podChoosesOtherProfile_othersAreUpgraded(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.profile.Spec.Rollout.MaxParallel, n.profile.Spec.Readiness.StartSeconds = 1, 600
		has := ""
		n.behave = only(func(p *fakeProxy) {
			if has == "" {
				has, p.readyAfter = p.PodUID, -1
			}
		}, image(2))
		cluster := twoProfiles{n, map[string]bool{}}
		n.cluster = cluster
		m, stop := agent()
		defer stop()
		uids := followMany(m, 2)
		after(time.Second)
		n.changeTo(m, 2)
		after(time.Second)
		n.change(func() { cluster.other[has] = true })
		m.Notify("edge")
		after(time.Minute)
		n.mustServe(t, slices.DeleteFunc(uids, func(uid string) bool { return uid == has }), 2)
	})
}

// A pod that wishes for a new proxy while one of a new version starts says nothing of that version.
func TestOutdate_wishDuringUpgrade_isNoFailure(t *testing.T) {
	for _, handover := range []v1alpha1.Handover{v1alpha1.HandoverHAProxy, v1alpha1.HandoverNone} {
		t.Run(string(handover), func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
				n.profile.Spec.Handover = handover
				n.behave = only(func(p *fakeProxy) { p.readyAfter = 3 * time.Second }, image(2))
				m, stop := agent()
				defer stop()
				m.Follow(sandboxOf("u1"))
				after(time.Second)
				n.changeTo(m, 2)
				after(time.Second)
				n.change(func() { n.wish = Wish("a") })
				m.Notify("edge")
				after(20 * time.Second)
				n.mustServe(t, []string{"u1"}, 2)
				if got := m.Figures()["edge"]; got.Failed != 0 || got.Upgraded == 0 {
					t.Errorf("figures %+v", got)
				}
			})
		})
	}
}

// beside is a runtime that remembers how many proxies ran when one was made.
type beside struct {
	*fakeNode
	ran []int
}

func (r *beside) Create(ctx context.Context, s sidecar.Spec) (string, error) {
	r.ran = append(r.ran, len(r.running()))
	return r.fakeNode.Create(ctx, s)
}

// A proxy that could not take over from one of another kind hands over to its own successor.
func TestUpgrade_predecessorCouldNotHandOver_successorCan(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.profile.Spec.Handover = v1alpha1.HandoverNone
		m, stop := agent()
		defer stop()
		recorded := &beside{fakeNode: n}
		m.Runtime = recorded
		m.Follow(sandboxOf("u1"))
		after(time.Second)
		n.change(n.sharePorts)
		n.changeTo(m, 2)
		after(10 * time.Second)
		n.mustServe(t, []string{"u1"}, 2)
		n.change(func() { n.wish = Wish("a") })
		m.Notify("edge")
		after(10 * time.Second)
		if got := fmt.Sprint(recorded.ran); got != "[0 0 1]" {
			t.Errorf("so many ran when a proxy was made: %s", got)
		}
	})
}

// A proxy that hangs says nothing of the version that its successor is of.
func TestLiveness_proxyHangsDuringUpgrade_newVersionHasNotFailed(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.profile.Spec.Liveness = &v1alpha1.Liveness{TCPPort: 15021, PeriodSeconds: 1, FailureThreshold: 1}
		m, stop := agent()
		defer stop()
		m.Follow(sandboxOf("u1"))
		after(time.Second)
		n.change(func() {
			n.containers["c001"].hangs = true
			n.behave = only(func(p *fakeProxy) {
				if strings.HasSuffix(p.from, handoverSocket(0)) {
					p.exit = 1
				}
			}, image(1), image(2))
		})
		after(900 * time.Millisecond)
		n.change(func() { n.profile.Spec.Image = image(2) }) // of which the sandbox learns when its proxy hangs
		after(30 * time.Second)
		if got := m.Figures()["edge"]; n.said["u1"].Image != image(2) || !n.said["u1"].Ready || got.Failed != 0 || got.Paused {
			t.Errorf("figures %+v, and the ManagedProxy says %+v", got, n.said["u1"])
		}
	})
}

// A proxy that starts when its profile goes is neither ended, nor taken for one that works.
func TestStep_profileGoesDuringStart_proxyGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.behave = func(p *fakeProxy) { p.readyAfter = 5 * time.Second }
		m, stop := agent()
		m.Follow(sandboxOf("u1"))
		after(time.Second)
		n.change(func() { n.chosen = "other" })
		m.Notify("")
		after(time.Second)
		stop()
		m, stop = agent()
		defer stop()
		m.Follow(sandboxOf("u1"))
		after(time.Second)
		n.change(func() { n.chosen = "edge" })
		m.Notify("")
		after(100 * time.Millisecond)
		n.mustSay(t, "u1", v1alpha1.Starting, false)
		if good := m.Remembered(); len(good) > 0 {
			t.Errorf("good versions of %q", good)
		}
		after(10 * time.Second)
		if said := n.mustSay(t, "u1", v1alpha1.Running, true); n.next != 1 {
			t.Errorf("%d proxies were made, and the ManagedProxy says %+v", n.next, said)
		}
	})
}

// A pod whose old proxies still drain has no room for an upgrade, and holds up nobody meanwhile.
func TestTakeTurn_oldProxiesDrain_othersAreUpgraded(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.profile.Spec.Rollout.MaxParallel, n.profile.Spec.DrainSeconds = 1, 600
		n.behave = func(p *fakeProxy) {
			p.readyAfter, p.drains = 200*time.Millisecond, time.Second
			if p.PodUID != "u6" {
				p.drains = -1
			}
		}
		n.sharePorts()
		m, stop := agent()
		defer stop()
		uids := followMany(m, 6)
		after(time.Second)
		n.changeTo(m, 2)
		after(30 * time.Second)
		n.mustServe(t, uids, 2)
		n.changeTo(m, 3)
		after(30 * time.Second)
		n.mustServe(t, uids[5:], 3)
		n.mustServe(t, uids[:5], 2)
		after(10 * time.Minute)
		n.mustServe(t, uids, 3)
	})
}

// A proxy of the version before, made while the present one fails, may end for good, too.
func TestIsDone_lastGoodEndsWithCode0_isNotStartedAgain(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.profile.Spec.RestartPolicy = restartOnFailure
		n.behave = only(neverReady, image(2))
		m, stop := agent()
		defer stop()
		followMany(m, 3)
		after(time.Second)
		n.changeTo(m, 2)
		after(time.Minute)
		m.Follow(sandboxOf("new"))
		after(time.Second)
		n.mustServe(t, []string{"new"}, 1, "is not known to work")
		for id, c := range n.containers {
			if c.PodUID == "new" {
				n.end(id, 0)
			}
		}
		after(time.Minute)
		n.mustSay(t, "new", v1alpha1.Ended, false)
		n.change(func() { n.behave = only(nil) })
		n.changeTo(m, 3)
		after(time.Minute)
		n.mustServe(t, []string{"new"}, 3)
	})
}

// The agent ends while proxies do not answer: no question is left.
func TestStart_agentEndsWhileProxiesHang_returns(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.behave = func(p *fakeProxy) { p.hangs = true }
		m, stop := agent()
		followMany(m, 60)
		after(1500 * time.Millisecond)
		stop()
	})
}
