package sidecars

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/probe"
	"istio-pod-network-controller/sidecars/profile"
)

func (n *fakeNode) Ask(ctx context.Context, s podnet.Sandbox, _ *profile.Version, epoch uint32, _ probe.Question) error {
	ready, hangs, err := n.howReady(s.ID, epoch)
	if hangs {
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
		return context.DeadlineExceeded
	}
	if err == nil && !ready {
		err = errors.New("connection refused")
	}
	return err
}

// howReady says how an epoch's proxy answers.
func (n *fakeNode) howReady(sandbox string, epoch uint32) (ready, hangs bool, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.containers {
		if c.Sandbox == sandbox && c.Epoch == epoch && c.State == sidecar.Running {
			return c.readyAfter >= 0 && time.Since(c.Created) >= c.readyAfter, c.hangs, n.failures["ask"]
		}
	}
	return false, false, n.failures["ask"]
}

// Proxies that answer nothing delay neither a new pod's proxy nor the next one of a proxy that has crashed.
func TestQuestions_otherProxiesSilent_delayNoStart(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		const silent = 40
		m, stop := agent()
		defer stop()
		for i := range silent {
			m.Follow(sandboxOf(fmt.Sprint("silent", i)))
		}
		m.Follow(sandboxOf("crashes"))
		n.after(time.Second)
		n.change(func() {
			for _, c := range n.containers {
				c.hangs = c.PodUID != "crashes"
			}
		})
		n.after(time.Minute)
		for i := range silent {
			n.mustSay(t, fmt.Sprint("silent", i), v1alpha1.Running, false)
		}
		m.Follow(sandboxOf("new"))
		n.change(func() {
			for id, c := range n.containers {
				if c.PodUID == "crashes" {
					go n.end(id, 1)
				}
			}
		})
		n.after(500 * time.Millisecond)
		n.mustSay(t, "new", v1alpha1.Running, true)
		if said := n.mustSay(t, "crashes", v1alpha1.Running, true); said.Restarts != 1 {
			t.Errorf("the ManagedProxy of the one that has crashed says %+v", said)
		}
	})
}

// A node whose proxies hang from their start on has places for those of other pods.
func TestQuestions_othersHangAtStart_newOneStarts(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.profile.Spec.Readiness.StartSeconds = 600
		n.behave = func(p *fakeProxy) { p.hangs = p.PodUID != "new" }
		m, stop := agent()
		defer stop()
		for i := range 40 {
			m.Follow(sandboxOf(fmt.Sprint("silent", i)))
		}
		n.after(10 * time.Second)
		m.Follow(sandboxOf("new"))
		n.after(300 * time.Millisecond)
		n.mustSay(t, "new", v1alpha1.Running, true)
	})
}

// An agent that starts says nothing of a proxy before that has answered: it may serve.
func TestUnheard_newAgent_saysNothingBeforeAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		stop()
		n.change(func() { clear(n.said); n.containers["c001"].hangs = true })
		m, stop = agent()
		defer stop()
		m.Follow(sandboxOf("u1"))
		n.after(900 * time.Millisecond)
		n.change(func() {
			if said, some := n.said["u1"]; some {
				t.Errorf("before the proxy has answered the ManagedProxy says %+v", said)
			}
		})
		n.after(time.Second)
		n.mustSay(t, "u1", v1alpha1.Starting, false)
	})
}

// A proxy, and with it its pod, is no longer ready once it has missed several questions in a row, and ready again with the next answer.
func TestFailureThreshold_questionsMissed_decide(t *testing.T) {
	for name, silence := range map[string]struct {
		length time.Duration
		ready  bool
	}{
		"two are too few":  {10500 * time.Millisecond, true},
		"three are enough": {20 * time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
				n.profile.Spec.Readiness.FailureThreshold = 3
				m, stop := agent()
				defer stop()
				m.Follow(sandboxOf("u1"))
				n.after(time.Second)
				n.change(func() { n.containers["c001"].readyAfter = -1 })
				n.after(silence.length)
				if said := n.mustSay(t, "u1", v1alpha1.Running, silence.ready); (said.Message == "") != silence.ready {
					t.Errorf("the ManagedProxy says %+v", said)
				}
				n.change(func() { n.containers["c001"].readyAfter = 0 })
				n.after(20 * time.Second)
				n.mustSay(t, "u1", v1alpha1.Running, true)
			})
		})
	}
}

// hang has the proxy that serves hang. canHandOver reports whether a successor of it becomes ready.
func (n *fakeNode) hang(id string, canHandOver bool) {
	n.change(func() {
		before := n.behave
		n.behave = func(p *fakeProxy) {
			before(p)
			if p.from != "" && !canHandOver {
				p.exit, p.readyAfter = 1, -1
			}
		}
		n.containers[id].hangs = true
	})
}

// A proxy that hangs is replaced: with a handover if it still can, else by one that starts when it has ended. It counts as a restart.
func TestLiveness_proxyHangs_isReplaced(t *testing.T) {
	for name, c := range map[string]struct {
		handover    profile.Handover
		canHandOver bool
		liveness    *profile.Probe
		wantEpoch   uint32
	}{
		"it hands over":                       {profile.HandoverHAProxy, true, &profile.Probe{TCPPort: 15021, PeriodSeconds: 5, FailureThreshold: 2}, 1},
		"it cannot hand over":                 {profile.HandoverHAProxy, false, &profile.Probe{TCPPort: 15021, PeriodSeconds: 5, FailureThreshold: 2}, 2},
		"there is no handover":                {profile.HandoverNone, true, &profile.Probe{TCPPort: 15021, PeriodSeconds: 5, FailureThreshold: 2}, 1},
		"the profile does not want it to be":  {profile.HandoverHAProxy, true, nil, 0},
		"it has not missed enough of them":    {profile.HandoverHAProxy, true, &profile.Probe{TCPPort: 15021, PeriodSeconds: 5, FailureThreshold: 50}, 0},
		"it is not asked before it was ready": {profile.HandoverHAProxy, true, &profile.Probe{TCPPort: 15021, PeriodSeconds: 3600}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
				n.profile.Spec.Handover, n.profile.Spec.Liveness = c.handover, c.liveness
				m, stop := agent()
				defer stop()
				m.Follow(sandboxOf("u1"))
				n.after(2 * time.Minute)
				n.mustSay(t, "u1", v1alpha1.Running, true)
				n.hang("c001", c.canHandOver)
				n.after(30 * time.Second)
				said := n.mustSay(t, "u1", v1alpha1.Running, c.wantEpoch > 0)
				replaced := int32(0)
				if c.wantEpoch > 0 {
					replaced = 1
				}
				if said.Epoch != c.wantEpoch || said.Restarts != replaced || strings.Contains(said.Failure, "questions of liveness") != (replaced == 1) {
					t.Errorf("the ManagedProxy says %+v, want epoch %d", said, c.wantEpoch)
				}
				if running := n.running(); len(running) != 1 || (running[0] == "c001") != (replaced == 0) {
					t.Errorf("%v run", running)
				}
				if got := m.Figures()["edge"]; replaced == 1 && got.Restarts != 1+uint64(c.wantEpoch-1) {
					t.Errorf("figures %+v", got)
				}
			})
		})
	}
}

// A proxy that hangs each time is replaced with pauses.
func TestLiveness_eachProxyHangs_isReplacedWithPauses(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.profile.Spec.Handover = profile.HandoverNone
		n.profile.Spec.Liveness = &profile.Probe{TCPPort: 15021, PeriodSeconds: 1, FailureThreshold: 1}
		n.behave = func(p *fakeProxy) {
			time.AfterFunc(200*time.Millisecond, func() { n.change(func() { p.hangs = true }) })
		}
		m, stop := agent()
		defer stop()
		m.Follow(sandboxOf("u1"))
		n.after(5 * time.Minute)
		if n.next < 10 || n.next > 50 {
			t.Errorf("%d proxies were made in 5 minutes", n.next)
		}
	})
}

// ownPort has each proxy answer at the port of its own version of the profile only.
type ownPort struct {
	*fakeNode
	ports map[string]int32 // by image
}

func (q ownPort) Ask(ctx context.Context, s podnet.Sandbox, p *profile.Version, epoch uint32, to probe.Question) error {
	wrong := false
	q.change(func() {
		for _, c := range q.containers {
			wrong = wrong || c.Sandbox == s.ID && c.Epoch == epoch && q.ports[c.Image] != to.Of(p, epoch).TCPPort
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
		n.profile.Spec.Liveness = &profile.Probe{TCPPort: 15021, PeriodSeconds: 5, FailureThreshold: 2}
		n.behave = only(func(p *fakeProxy) {
			if p.PodUID != "u1" {
				p.readyAfter = -1
			}
		}, image(2), image(3))
		asker := ownPort{n, map[string]int32{image(1): 15021, image(2): 15999, image(3): 15998}}
		m, stop := agent()
		m.Asker = asker
		uids := followMany(m, 3)
		n.after(time.Second)
		n.change(func() { n.profile.Spec.Readiness.TCPPort, n.profile.Spec.Liveness.TCPPort = 15999, 15999 })
		n.changeTo(m, 2)
		n.after(2 * time.Minute)
		n.mustServe(t, uids[:1], 2)
		n.change(func() { n.profile.Spec.Readiness.TCPPort, n.profile.Spec.Liveness.TCPPort = 15998, 15998 })
		n.changeTo(m, 3)
		for range 2 {
			n.after(2 * time.Minute)
			for uid, want := range map[string]int{"u1": 3, "u2": 1, "u3": 1} {
				if said := n.said[uid]; !said.Ready || said.Image != image(want) || said.Epoch > 2 || said.Restarts > 0 {
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

// A proxy that hangs says nothing of the version that its successor is of.
func TestLiveness_proxyHangsDuringUpgrade_newVersionHasNotFailed(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.profile.Spec.Liveness = &profile.Probe{TCPPort: 15021, PeriodSeconds: 2, FailureThreshold: 1}
		m, stop := agent()
		defer stop()
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		n.change(func() {
			n.containers["c001"].hangs = true
			n.behave = only(func(p *fakeProxy) {
				if strings.HasSuffix(p.from, profile.HandoverSocket(0)) {
					p.exit = 1
				}
			}, image(1), image(2))
		})
		n.after(2 * time.Second)
		n.change(func() { n.profile.Spec.Image = image(2) }) // of which the sandbox learns when its proxy hangs
		n.after(30 * time.Second)
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
		n.after(time.Second)
		n.change(func() { n.chosen = "other" })
		m.Notify("")
		n.after(time.Second)
		stop()
		m, stop = agent()
		defer stop()
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		n.change(func() { n.chosen = "edge" })
		m.Notify("")
		n.after(100 * time.Millisecond)
		n.mustSay(t, "u1", v1alpha1.Starting, false)
		if good := m.Good.Profiles(); len(good) > 0 {
			t.Errorf("good versions of %q", good)
		}
		n.after(10 * time.Second)
		if said := n.mustSay(t, "u1", v1alpha1.Running, true); n.next != 1 {
			t.Errorf("%d proxies were made, and the ManagedProxy says %+v", n.next, said)
		}
	})
}

// The agent ends while proxies do not answer: no question is left.
func TestStart_agentEndsWhileProxiesHang_returns(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.behave = func(p *fakeProxy) { p.hangs = true }
		m, stop := agent()
		followMany(m, 60)
		n.after(1500 * time.Millisecond)
		stop()
	})
}
