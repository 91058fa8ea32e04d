package sidecars

import (
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"istio-pod-network-controller/internal/podnet"
)

func heldProxy(p *Proxy) { p.Held = true }

// What runs while a pod moves to another proxy ends only once the rules lead to that one.
func TestDecide_podMoves_oldProxyServesUntilRulesChange(t *testing.T) {
	leaves := Desired{Leave: true, DrainLimit: 45 * time.Second}
	for name, c := range map[string]decideCase{
		"the rules lead elsewhere":  {leaves, []Proxy{running(0)}, Decision{Actions: []Action{drain(0)}}},
		"they do, and two run":      {leaves, []Proxy{running(0), running(1, unready(time.Second))}, Decision{Actions: []Action{drain(0), drain(1)}}},
		"they do, and it drains":    {leaves, []Proxy{running(0, draining(5*time.Second))}, Decision{Again: now().Add(40 * time.Second)}},
		"it has drained for long":   {leaves, []Proxy{running(0, draining(45*time.Second))}, Decision{Actions: []Action{stop(0, late)}}},
		"nothing is there any more": {leaves, nil, Decision{}},
		"a profile with other ports is chosen": {
			wants(to("v2")), []Proxy{running(0, heldProxy)}, Decision{Actions: []Action{start(1, "")}, Serving: "a"},
		},
		"one with other ports, and no handover": {
			wants(to("v2"), func(d *Desired) { d.MaxRunning = 1 }), []Proxy{running(0, heldProxy)}, Decision{Actions: []Action{start(1, "")}, Serving: "a"},
		},
		"its proxy is ready, and the rules still lead to the other": {
			wants(to("v2")), []Proxy{running(0, heldProxy), running(1, v2)}, Decision{Serving: "b"},
		},
		"its proxy is ready, and the rules lead there": {
			wants(to("v2")), []Proxy{running(0), running(1, v2)}, Decision{Actions: []Action{drain(0)}, Serving: "b"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, Decide(c.desired, c.there, now())); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// leaving is a pod that moves to a proxy elsewhere, and the agent that looks.
type leaving struct {
	*fakeNode
	cluster choosy
	m       *Manager
	agent   func() (*Manager, func())
	stop    func()
	restart bool // another agent looks after each step
}

// next changes what the pod has chosen.
func (l *leaving) next(change func(*Choice)) {
	l.change(func() { l.cluster.of["u1"] = change })
	if l.restart {
		l.stop()
		l.m, l.stop = l.agent()
		after(sweepInterval) // it finds the pod by its containers
	}
	l.m.Notify("")
}

// The proxy of a pod that moves to one that is not in its sandbox stays until the rules lead there, finishes its connections, and is gone,
// whatever agent looks.
func TestStep_podLeaves_proxyDrains(t *testing.T) {
	for name, restart := range map[string]bool{"one agent": false, "another agent each time": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) { //nolint:thelper // it is the test itself
				n.behave = func(p *fakeProxy) { p.drains = 20 * time.Second }
				l := &leaving{fakeNode: n, cluster: choosy{n, map[string]func(*Choice){}}, agent: agent, restart: restart}
				n.cluster = l.cluster
				l.m, l.stop = agent()
				l.m.Follow(sandboxOf("u1"))
				after(time.Minute)
				l.moves(t)
				l.stop()
			})
		})
	}
}

func (l *leaving) moves(t *testing.T) {
	t.Helper()
	l.next(func(c *Choice) { c.Leaves = true }) // the other one is not ready yet
	after(time.Minute)
	if got := l.running(); len(got) != 1 || l.drains("c001") {
		t.Errorf("%v run; the proxy to which the rules lead was told to end", got)
	}
	l.end("c001", 139)
	after(time.Minute)
	if got := l.running(); len(got) != 1 || got[0] != "c002" {
		t.Errorf("%v run: the proxy to which the rules lead was not started again", got)
	}
	l.next(func(c *Choice) { *c = Choice{Leaves: true, Drain: 45 * time.Second} })
	after(5 * time.Second)
	if got := l.running(); len(got) == 1 && !l.drains("c002") || len(got) == 0 && !l.restart {
		t.Errorf("%v run: the old proxy does not finish its connections", got)
	}
	after(time.Minute)
	if left := l.left(); len(left) != 0 || l.m.Follows("u1") {
		t.Errorf("%v are left, followed %v", left, l.m.Follows("u1"))
	}
}

// A proxy that knows no signal to finish is left alone for its time, and serves again if the pod comes back meanwhile.
func TestComeBack_podReturns_proxyServesAgain(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) { //nolint:thelper // it is the test itself
		n.profile.Spec.Handover = "none"
		cluster := choosy{n, map[string]func(*Choice){}}
		n.cluster = cluster
		m, stop := agent()
		defer stop()
		m.Follow(sandboxOf("u1"))
		after(time.Minute)
		left := func(c *Choice) { *c = Choice{Leaves: true, Drain: 45 * time.Second} }
		n.change(func() { cluster.of["u1"] = left })
		m.Notify("")
		after(30 * time.Second)
		n.change(func() { cluster.of["u1"] = nil })
		m.Follow(podnet.Sandbox{Namespace: "shop", Name: "cart-1", UID: "u1", ID: "sandbox-u1", NetNS: "/netns/u1"})
		after(time.Minute)
		if said := n.mustSay(t, "u1", "Running", true); n.next != 1 || said.Serves != "edge" {
			t.Errorf("%d proxies were made, the Sidecar says %+v", n.next, said)
		}
		n.change(func() { cluster.of["u1"] = left })
		m.Notify("")
		after(time.Second)
		note := m.Homes.of(Key{"u1", "sandbox-u1"}).noteOf(factLeft, 0)
		if err := os.Chtimes(note, time.Time{}, time.Now()); err != nil { // the file system's time is not the bubble's
			t.Fatal(err)
		}
		after(40 * time.Second)
		if got := n.running(); len(got) != 1 {
			t.Errorf("%v run before the time is over", got)
		}
		after(time.Minute)
		if left := n.left(); len(left) > 0 {
			t.Errorf("%v are left", left)
		}
	})
}
