package nftables

import (
	"context"
	"hash/maphash"
	"sync"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/routing"
)

// maxRemembered bounds the memory; without any of it nothing but time is lost.
const maxRemembered = 4096

// memory is what our tables were last read to hold, or made to, so that they need not be read while nothing has changed. The
// kernel numbers the generations of a namespace's nftables: whoever changes anything, the number is another one. A number is
// proof only together with an identity that is never given anew: without one nothing is remembered.
type memory struct {
	seed maphash.Seed
	mu   sync.Mutex
	seen map[netns.Identity]sight
}

// sight is a generation in which the table held what has this hash.
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

// note remembers s of a namespace, unless it could be taken for another one.
func (m *memory) note(id netns.Identity, s sight) {
	if !id.Unique() {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.seen) >= maxRemembered {
		clear(m.seen) // of namespaces that are gone nobody tells
	}
	m.seen[id] = s
}

func (m *memory) forget(id netns.Identity) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.seen, id)
}

// hash is of what a table holds of a Ruleset: what stands beside it is looked at each time.
func (m *memory) hash(r iptables.Ruleset) uint64 {
	var h maphash.Hash
	h.SetSeed(m.seed)
	for _, s := range r.Sets {
		maphash.WriteComparable(&h, [3]any{s.Name, s.Kind, [2]int{len(s.Ports), len(s.Prefixes)}})
		for _, p := range s.Ports {
			maphash.WriteComparable(&h, p)
		}
		for _, p := range s.Prefixes {
			maphash.WriteComparable(&h, p)
		}
	}
	for _, c := range r.Chains {
		maphash.WriteComparable(&h, [5]any{c.Name, c.Type, c.Hook, c.Priority, len(c.Rules)})
		for _, rule := range c.Rules {
			maphash.WriteComparable(&h, [3]any{rule.Action, rule.Comment, len(rule.Conds)})
			for _, cond := range rule.Conds {
				maphash.WriteComparable(&h, cond)
			}
		}
	}
	return h.Sum64()
}

// look is what a visit knows of a namespace before it reads any rule.
type look struct {
	id  netns.Identity
	now sight // nothing is remembered of a look whose generation is 0
}

// glance asks for the generation before all else, so that whoever changes something meanwhile makes it an old one. It is
// best effort: a kernel that does not tell costs no more than time.
func (b *Backend) glance(ctx context.Context, s *socket, want iptables.Ruleset) look {
	l := look{now: sight{hash: b.memory.hash(want)}}
	id, err := s.ns.IdentityBy(s.fd)
	if err != nil {
		return l
	}
	if generation, err := s.generation(ctx); err == nil {
		l.id, l.now.generation = id, generation
	}
	return l
}

// remembers reports whether the namespace holds want, as far as that can be told without reading the table.
func (b *Backend) remembers(l look, ns *netns.NS, want iptables.Ruleset) (same bool, err error) {
	if l.now.generation == 0 || !b.memory.has(l.id, l.now) {
		return false, nil
	}
	drift, err := beside(ns, want)
	return len(drift) == 0, err
}

// beside tells how addresses and routes differ from want's.
func beside(ns *netns.NS, want iptables.Ruleset) (iptables.Drift, error) {
	have, err := routing.Read(ns)
	return iptables.Diff(iptables.Ruleset{Loopback: want.Loopback, Routing: want.Routing}, have), err
}

// note remembers that the namespace holds what was looked for.
func (b *Backend) note(l look) {
	if l.now.generation != 0 {
		b.memory.note(l.id, l.now)
	}
}

// noteWritten remembers what a first transaction has written, which is one generation: if the next one is here, nobody else
// has changed anything since the look. Reading it all instead would cost as much as writing it.
func (b *Backend) noteWritten(ctx context.Context, s *socket, l look) {
	if generation, err := s.generation(ctx); err == nil && l.now.generation != 0 && generation == l.now.generation+1 {
		b.memory.note(l.id, sight{generation: generation, hash: l.now.hash})
	}
}
