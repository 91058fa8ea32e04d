package sidecars

import (
	"context"
	"errors"
	"testing"
	"time"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/sidecars/probe"
	"istio-pod-network-controller/sidecars/profile"
	"istio-pod-network-controller/sidecars/rollout"
)

// choosy is a cluster whose pods differ.
type choosy struct {
	*fakeNode
	of map[string]func(*Choice) // by the pod's UID
}

func (c choosy) Choice(ctx context.Context, s podnet.Sandbox) (Choice, error) {
	out, err := c.fakeNode.Choice(ctx, s)
	c.mu.Lock()
	defer c.mu.Unlock()
	if change := c.of[s.UID]; change != nil {
		change(&out)
	}
	return out, err
}

// began reports whether an upgrade of a pod's proxy has begun.
func (n *fakeNode) began(uid string) (is bool) {
	n.change(func() {
		for _, c := range n.containers {
			is = is || c.PodUID == uid && c.Epoch > 0
		}
	})
	return is
}

// A pod that can no longer be upgraded gives up its turn, so that another one is upgraded.
func TestRollouts_turnNoLongerNeeded_isFreed(t *testing.T) {
	for name, change := range map[string]func(*Choice){
		"it is being deleted":             func(c *Choice) { c.Ending = true },
		"it can have the profile no more": func(c *Choice) { c.Profile, c.Refusal = nil, "the pod is on the host's network" },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
				cluster := choosy{n, map[string]func(*Choice){}}
				m, stop := agent()
				defer stop()
				m.Cluster = cluster
				n.profile.Spec.Rollout.MaxParallel = 1
				m.Follow(sandboxOf("u1"))
				m.Follow(sandboxOf("u2"))
				n.after(2 * time.Second)
				n.change(func() { n.behave = func(p *fakeProxy) { p.readyAfter = -1 } })
				n.upgrade(m)
				n.after(5 * time.Second) // one of them has the turn
				first, other := "u1", "u2"
				if !n.began("u1") {
					first, other = other, first
				}
				n.change(func() { cluster.of[first] = change; n.behave = func(*fakeProxy) {} })
				m.Notify("")
				n.after(30 * time.Second)
				if said := n.mustSay(t, other, v1alpha1.Running, true); said.Image != "localhost/haproxy:2" {
					t.Errorf("the other one still waits: %+v", said)
				}
			})
		})
	}
}

// counted counts what a Manager asks of proxies.
type counted struct {
	*fakeNode
	asks map[uint32]int // by epoch
}

func (c *counted) Ask(ctx context.Context, s podnet.Sandbox, p *profile.Version, epoch uint32, q probe.Question) error {
	c.mu.Lock()
	c.asks[epoch]++
	c.mu.Unlock()
	return c.fakeNode.Ask(ctx, s, p, epoch, q)
}

// A proxy is asked while it starts, and then every ten seconds, however often it is looked at. Nobody asks one that drains, has ended, or
// has lost its profile.
func TestAsk_proxyThatIsWell_onceAPeriod(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.behave = func(p *fakeProxy) { p.readyAfter, p.drains = 200*time.Millisecond, -1 }
		c := &counted{fakeNode: n, asks: map[uint32]int{}}
		m, stop := agent()
		defer stop()
		m.Asker = c
		m.Follow(sandboxOf("u1"))
		n.after(100 * time.Millisecond)
		n.mustSum(t, rollout.NodeCount{Pods: 1})
		asks := func(epoch uint32, for10s func()) int {
			n.change(func() { c.asks[epoch] = 0 })
			for range 10 {
				for10s()
				n.after(time.Second)
			}
			n.mu.Lock()
			defer n.mu.Unlock()
			return c.asks[epoch]
		}
		n.after(time.Second)
		if got := asks(0, func() { m.Notify("edge") }); got != 1 {
			t.Errorf("one that is ready was asked %d times in 10 s", got)
		}
		n.upgrade(m)
		n.after(time.Second)
		if got := asks(0, func() { m.Notify("edge") }); got != 0 {
			t.Errorf("one that drains was asked %d times", got)
		}
		n.change(func() { n.chosen = "gone" })
		m.Notify("")
		if got := asks(1, func() { m.Notify("") }); got != 0 {
			t.Errorf("one without a profile was asked %d times", got)
		}
		n.change(func() { n.chosen = "edge"; n.failures["remove"] = errors.New("not now") })
		n.end("c002", 1)
		n.after(time.Second)
		if got := asks(1, func() { m.Notify("") }); got != 0 {
			t.Errorf("one that has ended was asked %d times", got)
		}
	})
}

// A proxy that answers late is not looked at again and again meanwhile.
func TestAsk_answerIsLate_fewLooks(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.profile.Spec.Liveness = &profile.Probe{TCPPort: 15021, PeriodSeconds: 1, FailureThreshold: 100}
		m, stop := agent()
		defer stop()
		m.Follow(sandboxOf("u1"))
		n.after(20 * time.Second)
		n.change(func() { n.asks, n.containers["c001"].hangs = 0, true })
		n.after(2 * time.Second)
		if n.asks > 10 {
			t.Errorf("the runtime was asked %d times in 2 s", n.asks)
		}
	})
}

// A sandbox that the runtime is still starting is looked at often at first, and then more and more seldom.
func TestAgain_sandboxStarts_looksMoreAndMoreSeldom(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		defer stop()
		s := sandboxOf("u1")
		n.stopped = map[string]bool{s.ID: true}
		m.Follow(s)
		var first, all int
		n.after(time.Second)
		n.change(func() { first = n.asks })
		n.after(lookFor - 2*time.Second)
		n.change(func() { all, n.stopped = n.asks, nil })
		if first < 12 || all > 60 {
			t.Errorf("the runtime was asked %d times in the first second, and %d times in nine", first, all)
		}
		n.after(2 * probe.SilentPoll)
		n.mustSay(t, "u1", v1alpha1.Running, true)
	})
}

// A proxy that was not ready in time has failed once, however often the runtime refuses to end it.
func TestStop_runtimeRefuses_isOneFailure(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.behave = func(p *fakeProxy) { p.readyAfter = -1 }
		m, stop := agent()
		defer stop()
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		n.change(func() { n.failures["stop"] = errors.New("not now") })
		n.after(30 * time.Second)
		n.change(func() { clear(n.failures); n.behave = func(*fakeProxy) {} })
		n.after(lastErrorPause + time.Second)
		if said := n.mustSay(t, "u1", v1alpha1.Running, true); said.Epoch != 1 {
			t.Errorf("the ManagedProxy says %+v", said)
		}
	})
}

// A pod that is being deleted keeps the proxy that it has.
func TestStep_podBeingDeleted_isNotUpgraded(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		defer stop()
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		n.change(func() { n.ending = true })
		n.upgrade(m)
		n.after(10 * time.Second)
		if n.next != 1 {
			t.Errorf("%d were made", n.next)
		}
	})
}

// A proxy that was asked and has not answered is not taken for ready because nobody can ask it any more.
func TestStep_profileGoneBeforeReady_proxyStays(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.behave = func(p *fakeProxy) { p.readyAfter = -1 }
		m, stop := agent()
		defer stop()
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		n.change(func() { n.chosen = "gone" })
		m.Notify("")
		n.after(time.Second)
		n.mustSay(t, "u1", n.said["u1"].State, false)
	})
}

// An agent that starts does not know how long a proxy has been able to answer, and gives it its whole time.
func TestStep_newAgent_givesStartingProxyItsTime(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.behave = func(p *fakeProxy) { p.readyAfter = -1 }
		for range 2 {
			m, stop := agent()
			m.Follow(sandboxOf("u1"))
			n.after(8 * time.Second)
			if got := n.running(); len(got) != 1 || n.next != 1 {
				t.Errorf("%v run of %d", got, n.next)
			}
			stop()
		}
	})
}

// The proxy of a pod that has finished is looked at until it has ended.
func TestStep_podFinished_followsProxyToItsEnd(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		defer stop()
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		n.change(func() { n.finished, n.ending = true, true })
		m.Notify("")
		n.after(5 * time.Second)
		n.mustSay(t, "u1", v1alpha1.Running, true)
		n.end("c001", 137)
		n.after(5 * time.Second)
		n.mustSay(t, "u1", v1alpha1.Ended, false)
	})
}

// The runtime refuses a name that it still has, of the pod's last sandbox: the first start in a new one must not fail by it.
func TestStep_newSandbox_usesNewEpochs(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		defer stop()
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		next := sandboxOf("u1")
		next.ID = "sandbox-new"
		m.Follow(next) // while the old proxy runs
		n.after(time.Second)
		if said := n.mustSay(t, "u1", v1alpha1.Running, true); said.Epoch != 1 || said.Failure != "" || n.next != 2 {
			t.Errorf("%+v, %d were made", said, n.next)
		}
	})
}
