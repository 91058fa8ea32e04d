package nftables

import (
	"context"
	"hash/maphash"
	"sync"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/routing"
)

// maxRemembered bounds the memory. A table that is not remembered is read again.
const maxRemembered = 4096

// memory holds what our tables contained when they were last read or written, so that they need not be read while nothing has changed.
// The kernel counts the generations of a namespace's nftables: each change by anybody gives a new number. A matching number is
// proof only together with an identity that is never re-used; a namespace without one is not remembered.
type memory struct {
	seed maphash.Seed
	mu   sync.Mutex
	seen map[netns.Identity]sight
}

// sight is a generation, and the hash of what the table contained in it.
type sight struct {
	generation uint32
	hash       uint64
}

func newMemory() *memory { return &memory{seed: maphash.MakeSeed(), seen: map[netns.Identity]sight{}} }

func (m *memory) has(id netns.Identity, s sight) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	seen, ok := m.seen[id]
	return ok && seen == s
}

// note remembers s of a namespace, unless its identity may be re-used.
func (m *memory) note(id netns.Identity, s sight) {
	if !id.Unique() {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.seen) >= maxRemembered {
		clear(m.seen) // nothing reports namespaces that are gone
	}
	m.seen[id] = s
}

func (m *memory) forget(id netns.Identity) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.seen, id)
}

// look is what is known of a namespace before any rule is read.
type look struct {
	id  netns.Identity
	now sight // with generation 0 nothing is remembered
}

// glance asks for the generation first, so that any later change makes it an old one. If the kernel does not answer, the table is
// read: that costs time only.
func (b *Backend) glance(ctx context.Context, s *socket, want iptables.Ruleset) look {
	l := look{now: sight{hash: want.Hash(b.memory.seed)}}
	id, err := s.ns.IdentityBy(s.fd)
	if err != nil {
		return l
	}
	if generation, err := s.generation(ctx); err == nil {
		l.id, l.now.generation = id, generation
	}
	return l
}

// remembers reports whether the namespace holds want, as far as is known without reading the table.
func (b *Backend) remembers(l look, ns *netns.NS, want iptables.Ruleset) (same bool, err error) {
	if l.now.generation == 0 || !b.memory.has(l.id, l.now) {
		return false, nil
	}
	drift, err := routing.Drift(ns, want)
	return len(drift) == 0, err
}

// note remembers that the namespace holds what l looked for.
func (b *Backend) note(l look) {
	if l.now.generation != 0 {
		b.memory.note(l.id, l.now)
	}
}

// noteWritten remembers what a first transaction has written. A transaction is one generation: if the present one is the next after
// the look's, nobody else has changed anything. Reading it all back would cost as much as writing it.
func (b *Backend) noteWritten(ctx context.Context, s *socket, l look) {
	if generation, err := s.generation(ctx); err == nil && l.now.generation != 0 && generation == l.now.generation+1 {
		b.memory.note(l.id, sight{generation: generation, hash: l.now.hash})
	}
}
