package sidecars

import (
	"context"
	"errors"
	"testing"
	"time"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
)

// deaf is a runtime that cannot say at first which process is a proxy's, and knows no container that is gone.
type deaf struct {
	*fakeNode
	first error
	waits int
}

func (d *deaf) Wait(ctx context.Context, id string) error {
	d.mu.Lock()
	d.waits++
	first, there := d.waits == 1, d.containers[id] != nil
	d.mu.Unlock()
	switch {
	case first:
		return d.first
	case !there:
		return sidecar.ErrGone
	}
	return d.fakeNode.Wait(ctx, id)
}

// A proxy's end is noticed at once, also if it could not be waited for at first. Nobody waits for one that is gone.
func TestWatch_proxyEnds_isSeenAtOnce(t *testing.T) {
	for name, first := range map[string]error{"the runtime restarts": errors.New("not now"), "it was not there": sidecar.ErrGone} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
				n.profile.Spec.Readiness.PeriodSeconds = 30
				m, stop := agent()
				defer stop()
				runtime := &deaf{fakeNode: n, first: first}
				m.Runtime = runtime
				m.Follow(sandboxOf("u1"))
				n.after(2 * watchPause)
				if errors.Is(first, sidecar.ErrGone) {
					if runtime.waits != 1 {
						t.Errorf("%d waits for a proxy that is gone", runtime.waits)
					}
					return
				}
				n.end("c001", 139)
				n.after(time.Second)
				if said := n.mustSay(t, "u1", v1alpha1.Running, true); said.Epoch != 1 || runtime.waits != 3 {
					t.Errorf("after %d waits: %+v", runtime.waits, said)
				}
			})
		})
	}
}

// Each event of a pod follows its sandbox again. What is known of its proxy stays, and what is new of the sandbox is noted.
func TestFollow_again_keepsMemory(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		defer stop()
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		n.end("c001", 139)
		n.after(2 * time.Second)
		moved := sandboxOf("u1")
		moved.NetNS = "/netns/elsewhere"
		m.Follow(moved)
		n.after(time.Second)
		if said := n.mustSay(t, "u1", v1alpha1.Running, true); said.Restarts != 1 || said.Message == "" {
			t.Errorf("the ManagedProxy says %+v", said)
		}
		if got := m.followed.known[podnet.Key{PodUID: "u1", Sandbox: "sandbox-u1"}].sandbox; got != moved {
			t.Errorf("the sandbox is known as %+v", got)
		}
		if !m.Follows("u1") || m.Follows("u2") {
			t.Errorf("followed are u1: %t, u2: %t", m.Follows("u1"), m.Follows("u2"))
		}
	})
}
