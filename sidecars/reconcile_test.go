package sidecars

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/home"
	"istio-pod-network-controller/sidecars/probe"
	"istio-pod-network-controller/sidecars/profile"
	"istio-pod-network-controller/sidecars/rollout"
)

// An agent that cannot read what there is changes nothing, and goes on once it can.
func TestStep_readFails_changesNothing(t *testing.T) {
	for name, read := range map[string]string{"the runtime does not answer": "list", "the API server does not answer": "choice"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
				for range 2 { // the second agent finds a proxy
					m, stop := agent()
					n.change(func() { n.failures[read] = errors.New("not now") })
					m.Follow(sandboxOf("u1"))
					n.after(10 * time.Second)
					if n.calls != 0 || !m.Follows("u1") {
						t.Errorf("%d calls have changed something; it is followed: %t", n.calls, m.Follows("u1"))
					}
					n.change(func() { delete(n.failures, read) })
					n.after(10 * time.Second)
					n.mustSay(t, "u1", v1alpha1.Running, true)
					stop()
				}
				if n.next != 1 {
					t.Errorf("%d proxies were made", n.next)
				}
			})
		})
	}
}

// signals is a runtime that remembers who was signalled.
type signals struct {
	*fakeNode
	sent map[string][]unix.Signal // by container ID
}

func (r signals) Signal(ctx context.Context, id string, signal unix.Signal) error {
	err := r.fakeNode.Signal(ctx, id, signal)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.sent[id] = append(r.sent[id], signal)
	}
	return err
}

// Each proxy is told to drain by the signal that it was made with, once, and not at all if its successor tells it.
func TestDrain_proxies_getTheirOwnSignal(t *testing.T) {
	for name, c := range map[string]struct {
		first string
		want  map[string][]unix.Signal
	}{
		"two HAProxies":              {"USR1", map[string][]unix.Signal{"c001": {unix.SIGUSR1}, "c002": {unix.SIGUSR1}}},
		"a proxy of another version": {"WINCH", map[string][]unix.Signal{"c001": {unix.SIGWINCH}, "c002": {unix.SIGUSR1}}},
		"its successor tells it":     {"", map[string][]unix.Signal{"c002": {unix.SIGUSR1}}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
				n.behave = func(p *fakeProxy) { p.drains = -1 }
				m, stop := agent()
				defer stop()
				runtime := signals{n, map[string][]unix.Signal{}}
				m.Runtime = runtime
				m.Follow(sandboxOf("u1"))
				n.after(time.Second)
				n.change(func() { n.containers["c001"].StopSignal = c.first })
				for _, image := range []string{"localhost/haproxy:2", "localhost/haproxy:3"} {
					n.change(func() { n.profile.Spec.Image = image })
					m.Notify("edge")
					n.after(time.Second)
				}
				if !maps.EqualFunc(runtime.sent, c.want, slices.Equal) || len(n.running()) != 3 {
					t.Errorf("signals %v, want %v; %v run", runtime.sent, c.want, n.running())
				}
			})
		})
	}
}

// A proxy that cannot be signalled just now is told to drain later: otherwise it would take connections until it is killed.
func TestDrain_signalFails_isToldLater(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		defer stop()
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		n.change(func() { n.failures["signal"] = errors.New("the runtime restarts") })
		n.change(func() { n.asks = 0 })
		n.upgrade(m)
		n.after(10 * time.Second)
		n.mustSay(t, "u1", v1alpha1.Running, true)
		if n.asks > 40 {
			t.Errorf("the runtime was asked %d times in 10 s", n.asks)
		}
		n.change(func() { delete(n.failures, "signal") })
		n.after(5 * time.Second)
		if got := n.running(); !slices.Equal(got, []string{"c002"}) {
			t.Errorf("%v run", got)
		}
		if said := n.said["u1"]; said.Restarts != 0 || said.Failure != "" {
			t.Errorf("the ManagedProxy says %+v", said)
		}
	})
}

// A container that the runtime cannot remove keeps the pod waiting for no proxy.
func TestRemove_fails_nextProxyStarts(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		defer stop()
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		n.change(func() { n.failures["remove"] = errors.New("device or resource busy") })
		n.end("c001", 139)
		n.after(5 * time.Second)
		if said := n.mustSay(t, "u1", v1alpha1.Running, true); said.Epoch != 1 || said.Restarts != 1 {
			t.Errorf("the ManagedProxy says %+v", said)
		}
	})
}

// What belongs to a proxy that runs stays when the container of another one goes that had ended before this agent came.
func TestForget_otherEpoch_keepsItsFiles(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		n.change(func() { n.behave = func(p *fakeProxy) { p.readyAfter = -1 } })
		n.upgrade(m)
		n.after(time.Second)
		stop()
		n.end("c002", 1)
		m, stop = agent()
		defer stop()
		n.change(func() { n.failures["remove"], n.failures["create"] = errors.New("not now"), errors.New("not now") })
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		n.change(func() { delete(n.containers, "c002") }) // by the kubelet
		n.after(3 * time.Second)
		if _, err := os.Stat(m.Homes.Of(podnet.Key{PodUID: "u1", Sandbox: "sandbox-u1"}).Epoch(0).Files()); err != nil {
			t.Errorf("files of the proxy that serves: %v", err)
		}
	})
}

// A proxy without handover is ended for its new version. That is no failure.
func TestStop_replacedProxy_isNoFailure(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.profile.Spec.Handover = profile.HandoverNone
		m, stop := agent()
		defer stop()
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		n.upgrade(m)
		n.after(5 * time.Second)
		if said := n.mustSay(t, "u1", v1alpha1.Running, true); said.Image != "localhost/haproxy:2" || said.Message != "" || said.Failure != "" || said.Restarts != 0 {
			t.Errorf("the ManagedProxy says %+v", said)
		}
		n.mustSum(t, rollout.NodeCount{Pods: 1, Upgraded: 1})
	})
}

// A pod whose image is being pulled says so, and is looked at when the pull has ended.
func TestStart_imagePulling_waitsForNotify(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.pulling = true
		m, stop := agent()
		defer stop()
		n.after(time.Second)
		m.Follow(sandboxOf("u1"))
		n.after(5 * time.Minute)
		n.mustSay(t, "u1", v1alpha1.Pulling, false)
		if n.asks > 30 {
			t.Errorf("the runtime was asked %d times in 5 minutes", n.asks)
		}
		n.change(func() { n.pulling = false })
		m.Notify("")
		n.after(time.Second)
		n.mustSay(t, "u1", v1alpha1.Running, true)
	})
}

// A proxy whose container is gone before anybody has seen it has failed like any other one.
func TestNoteLost_proxyVanishes_isStartedWithPauses(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.behave = func(p *fakeProxy) {
			time.AfterFunc(time.Millisecond, func() { n.change(func() { delete(n.containers, p.ID) }) })
		}
		m, stop := agent()
		defer stop()
		m.Follow(sandboxOf("u1"))
		n.after(time.Minute)
		if said := n.said["u1"]; n.next > 20 || said.Failure == "" {
			t.Errorf("%d proxies were made in a minute; the ManagedProxy says %+v", n.next, said)
		}
	})
}

// An epoch that could not be started is not used again: the runtime may still have its name.
func TestStart_epochFailed_usesNext(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.failures["start"] = errors.New("not now")
		m, stop := agent()
		defer stop()
		m.Follow(sandboxOf("u1"))
		n.after(50 * time.Millisecond)
		n.change(func() { delete(n.failures, "start") })
		n.after(5 * time.Second)
		if said := n.mustSay(t, "u1", v1alpha1.Running, true); int(said.Epoch) != n.next-1 || n.next < 2 {
			t.Errorf("epoch %d of %d", said.Epoch, n.next)
		}
	})
}

// Whatever runs that is not ready may be replaced without a slot, and what has ended counts as nothing.
func TestNeedsSlot_proxies_onlyServingOnesDo(t *testing.T) {
	for name, c := range map[string]struct {
		there   sidecar.Container
		ready   bool
		drained bool
		want    bool // a slot
	}{
		"one that serves":            {sidecar.Container{State: sidecar.Running, Labels: sidecar.Labels{Hash: "old"}}, true, false, true},
		"one that never was ready":   {sidecar.Container{State: sidecar.Running, Labels: sidecar.Labels{Hash: "old"}}, false, false, false},
		"one that has ended":         {sidecar.Container{State: sidecar.Exited, Labels: sidecar.Labels{Hash: "old"}}, true, false, false},
		"one that drains":            {sidecar.Container{State: sidecar.Running, Labels: sidecar.Labels{Hash: "old"}}, true, true, false},
		"one of the present version": {sidecar.Container{State: sidecar.Running, Labels: sidecar.Labels{Hash: "new"}}, true, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			c.there.ID = "c1"
			o := observed{
				choice:     Choice{Profile: &profile.Version{Name: "edge", Hash: "new"}},
				containers: []sidecar.Container{c.there}, proxies: map[string]proxy{"c1": {probes: probe.Results{WasReady: c.ready}}},
			}
			if c.drained {
				o.notes = o.notes.With(home.Draining, 0)
			}
			if got := needsSlot(o); got != c.want {
				t.Errorf("it needs a slot: %t", got)
			}
		})
	}
}
