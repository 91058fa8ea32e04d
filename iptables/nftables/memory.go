package nftables

import (
	"fmt"
	"hash/maphash"
	"sync"

	nft "github.com/google/nftables"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/routing"
)

// maxRemembered bounds the memory; without any of it nothing but time is lost.
const maxRemembered = 4096

// memory is what our tables were last read to hold, or made to, so that they need not be read while nothing has changed. The kernel
// numbers the generations of a namespace's nftables: whoever changes anything, the number is another one. A number alone is
// no proof that the namespace is the same, whose inode the kernel may have given anew; with a table of ours in it, it is:
// whatever writes one here forgets first.
type memory struct {
	seed maphash.Seed
	mu   sync.Mutex
	seen map[netns.ID]sight
}

// sight is a generation in which the table held what has this hash.
type sight struct {
	generation uint32
	hash       uint64
}

func newMemory() *memory { return &memory{seed: maphash.MakeSeed(), seen: map[netns.ID]sight{}} }

func (m *memory) has(id netns.ID, s sight) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.seen[id] == s
}

func (m *memory) note(id netns.ID, s sight) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.seen) >= maxRemembered {
		clear(m.seen) // of namespaces that are gone nobody tells
	}
	m.seen[id] = s
}

func (m *memory) forget(id netns.ID) {
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

// glance tells whether the namespace holds want, as far as that can be told without reading the table, and gives what to
// remember when reading it shows that it does. The generation is asked for before all else, so that whoever changes
// something meanwhile makes it an old one.
func (b *Backend) glance(ns *netns.NS, conn *nft.Conn, want iptables.Ruleset) (now sight, same bool, err error) {
	gen, err := conn.GetGen()
	if err != nil {
		return now, false, fmt.Errorf("ask for the generation of rules: %w", err)
	}
	now = sight{generation: gen.ID, hash: b.memory.hash(want)}
	if !b.memory.has(ns.ID(), now) {
		return now, false, nil
	}
	table, err := ownTable(conn)
	if err != nil || table == nil {
		return now, false, err
	}
	beside, err := routing.Read(ns)
	return now, len(iptables.Diff(iptables.Ruleset{Loopback: want.Loopback, Routing: want.Routing}, beside)) == 0, err
}
