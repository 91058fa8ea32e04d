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
	seed     maphash.Seed
	mu       sync.Mutex
	versions map[netns.Identity]version
}

// version is a generation, and the hash of what the table contained in it.
type version struct {
	generation uint32
	hash       uint64
}

func newMemory() *memory {
	return &memory{seed: maphash.MakeSeed(), versions: map[netns.Identity]version{}}
}

func (m *memory) has(id netns.Identity, v version) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	seen, ok := m.versions[id]
	return ok && seen == v
}

// remember stores v for a namespace, unless its identity may be re-used.
func (m *memory) remember(id netns.Identity, v version) {
	if !id.Unique() {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.versions) >= maxRemembered {
		clear(m.versions) // nothing reports namespaces that are gone
	}
	m.versions[id] = v
}

func (m *memory) forget(id netns.Identity) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.versions, id)
}

// namespaceVersion is a namespace's identity with its present generation and the hash of the wanted rules.
type namespaceVersion struct {
	id      netns.Identity
	version version // with generation 0 nothing is remembered
}

// currentVersion asks for the generation before any rule is read, so that any later change makes it outdated. If the kernel does not
// answer, nothing is remembered and the table is read, which costs time only.
func (b *Backend) currentVersion(ctx context.Context, s *socket, want iptables.Ruleset) namespaceVersion {
	current := namespaceVersion{version: version{hash: want.Hash(b.memory.seed)}}
	id, err := s.ns.IdentityBy(s.fd)
	if err != nil {
		return current
	}
	if generation, err := s.generation(ctx); err == nil {
		current.id, current.version.generation = id, generation
	}
	return current
}

// remembers reports whether the namespace holds want, as far as is known without reading the table.
func (b *Backend) remembers(current namespaceVersion, ns *netns.NS, want iptables.Ruleset) (same bool, err error) {
	if current.version.generation == 0 || !b.memory.has(current.id, current.version) {
		return false, nil
	}
	drift, err := routing.Drift(ns, want)
	return len(drift) == 0, err
}

// rememberCompared remembers that the namespace was compared and holds the wanted rules.
func (b *Backend) rememberCompared(current namespaceVersion) {
	if current.version.generation != 0 {
		b.memory.remember(current.id, current.version)
	}
}

// rememberWritten remembers what a first transaction has written. A transaction is one generation: if the present one is the next after
// current's, nobody else has changed anything. Reading it all back would cost as much as writing it.
func (b *Backend) rememberWritten(ctx context.Context, s *socket, current namespaceVersion) {
	if generation, err := s.generation(ctx); err == nil && current.version.generation != 0 && generation == current.version.generation+1 {
		b.memory.remember(current.id, version{generation: generation, hash: current.version.hash})
	}
}
