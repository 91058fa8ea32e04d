package sidecars

import (
	"slices"
	"time"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/profile"
)

// fakeRules are the rules of a sandbox: where they are to lead, and where they lead.
type fakeRules struct{ want, now intent.ManagedProxy }

// Lead has rules applied, which takes a while, and follows the sandbox then, as the core does.
func (n *fakeNode) Lead(s podnet.Sandbox, to intent.ManagedProxy, serves bool) (applied bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	r := n.rules[s.Key()]
	switch {
	case r == nil && !serves:
		return true
	case r == nil:
		r = &fakeRules{}
		n.rules[s.Key()] = r
	}
	if !equal(r.want, to) {
		r.want = to
		if n.stuck[s.UID] {
			return false
		}
		if n.slow == 0 {
			r.now = to
		} else {
			time.AfterFunc(n.slow, func() {
				n.mu.Lock()
				r.now = r.want
				n.mu.Unlock()
				n.manager.Follow(s)
			})
		}
	}
	return equal(r.now, to)
}

func equal(a, b intent.ManagedProxy) bool {
	return a.Profile == b.Profile && a.Owner == b.Owner && a.OutboundPort == b.OutboundPort && a.InboundPort == b.InboundPort && slices.Equal(a.Beside, b.Beside)
}

// checkStart notes a proxy whose own connections are redirected. n.mu is held.
func (n *fakeNode) checkStart(p *fakeProxy) {
	r := n.rules[podnet.Key{PodUID: p.PodUID, Sandbox: p.Sandbox}]
	if r == nil {
		return
	}
	owner := n.made(p).Owner
	if r.now.Owner != owner && !slices.Contains(r.now.Beside, owner) {
		n.broken = append(n.broken, "a proxy starts as "+owner.Words()+", which the rules redirect")
	}
}

// checkEnd notes that the rules lead to a proxy that takes no connections any more, while another one would. n.mu is held.
func (n *fakeNode) checkEnd(p *fakeProxy) {
	r := n.rules[podnet.Key{PodUID: p.PodUID, Sandbox: p.Sandbox}]
	if r == nil {
		return
	}
	for _, other := range n.containers {
		if other == p || other.PodUID != p.PodUID || other.State != sidecar.Running || other.drained {
			continue
		}
		if to := n.made(other); to.Profile != "" && (to.OutboundPort != r.now.OutboundPort || to.Owner != r.now.Owner) {
			n.broken = append(n.broken, "the rules still lead to a proxy that drains")
		}
	}
}

// made returns what the rules need to know of a proxy. n.mu is held.
func (n *fakeNode) made(p *fakeProxy) intent.ManagedProxy {
	for _, spec := range append(slices.Clone(n.earlier), n.profile.Spec) {
		if spec.Hash() == p.Hash {
			if version, err := profile.New(n.profile.Name, spec); err == nil {
				return version.ManagedProxy()
			}
		}
	}
	return intent.ManagedProxy{}
}
