package kernel

import (
	"hash/maphash"
	"sync"
	"time"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/foreign"
	"istio-pod-network-controller/iptables/routing"
)

const (
	// maxRemembered bounds the memory. A forgotten namespace is read once more.
	maxRemembered = 4096
	// routesAge is how long routes are not looked at in a namespace whose rules need none. Leftovers of a former mode do nothing there.
	routesAge = time.Minute
	// noLegacyAge is how long tables of x_tables are not looked for in a namespace that had none.
	noLegacyAge = 30 * time.Second
	// legacyAge is how long the memory of a namespace with tables of x_tables is used. They have no count of changes: a process that changes
	// a table while it is being read, and back, is not noticed.
	legacyAge = time.Minute
)

// memory is the only memory of namespaces' rules. It answers before a backend is asked: while no packet filter rule in a namespace changes,
// an Apply compares addresses and routes only, since the kernel does not count their changes.
//
// A namespace without a cookie is not remembered, since a later namespace could have the same inode.
type memory struct {
	reader foreign.Reader
	seed   maphash.Seed
	now    func() time.Time
	mu     sync.Mutex
	seen   map[podnet.Identity]seen
}

// seen is what is remembered of a namespace.
type seen struct {
	// ours is set from the first write of our rules until their removal. Another project is recognised by names only: a process of the pod
	// with NET_ADMIN can delete our rules and create chains of such names. In a namespace that had our rules they are restored nevertheless.
	ours bool
	verification
}

// verification is what the last Apply with nothing to do has found. There is none for a namespace with foreign rules before ours: the kernel
// counts no change when a table goes with the process that owns it.
type verification struct {
	rules  foreign.State   // of all rules in the namespace, read before everything else
	want   uint64          // hash of the rules that are in force
	chains *iptables.Chain // the first of the chains that want is the hash of; a Ruleset is not changed once it is made
	at     time.Time       // when it began
	routes time.Time       // when routes were compared last
	legacy time.Time       // when tables of x_tables were looked for last
}

func newMemory() *memory {
	return &memory{reader: foreign.NewReader(), seed: maphash.MakeSeed(), now: time.Now, seen: map[podnet.Identity]seen{}}
}

// begin reads what to remember if the Apply that follows finds nothing to do. ok is false if nothing can be remembered.
func (m *memory) begin(ns *netns.NS, id podnet.Identity, want iptables.Ruleset) (now verification, ok bool) {
	if id.Cookie == 0 {
		return now, false
	}
	last := m.of(id)
	now.at = m.now()
	now.routes, now.legacy = now.at, now.at
	now.chains = first(want.Chains)
	if now.chains != nil && last.chains == now.chains {
		now.want = last.want
	} else {
		now.want = iptables.Hash(m.seed, want)
	}
	if last.rules.Legacy == 0 && now.at.Sub(last.legacy) < noLegacyAge {
		now.legacy = last.legacy
		now.rules, ok = m.reader.WithoutLegacy(ns)
	} else {
		now.rules, ok = m.reader.State(ns)
	}
	return now, ok
}

// unchanged reports whether the namespace still holds want, and nothing in it has changed since an Apply found nothing to do.
func (m *memory) unchanged(ns *netns.NS, id podnet.Identity, now verification, want iptables.Ruleset) (same bool, err error) {
	last := m.of(id).verification
	old := now.rules.Legacy != 0 && now.at.Sub(last.at) >= legacyAge
	if last.at.IsZero() || old || last.rules != now.rules || last.want != now.want {
		return false, nil
	}
	compare := routing.Drift
	if len(want.Routing) == 0 && now.at.Sub(last.routes) < routesAge {
		compare, now.routes = routing.AddressDrift, last.routes
	}
	if drift, err := compare(ns, want); err != nil || len(drift) > 0 {
		return false, err
	}
	last.routes, last.legacy = now.routes, now.legacy
	m.verified(id, last)
	return true, nil
}

// of returns what is remembered of a namespace; the zero value if nothing is.
func (m *memory) of(id podnet.Identity) seen {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.seen[id]
}

func first(chains []iptables.Chain) *iptables.Chain {
	if len(chains) == 0 {
		return nil
	}
	return &chains[0]
}

// written remembers that our rules were written to a namespace.
func (m *memory) written(id podnet.Identity) { m.change(id, func(s *seen) { s.ours = true }) }

// verified remembers what an Apply has found.
func (m *memory) verified(id podnet.Identity, found verification) {
	m.change(id, func(s *seen) { s.verification = found })
}

func (m *memory) change(id podnet.Identity, change func(*seen)) {
	if id.Cookie == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s, known := m.seen[id]
	if !known && len(m.seen) >= maxRemembered {
		clear(m.seen) // nothing reports namespaces that are gone
	}
	change(&s)
	m.seen[id] = s
}

func (m *memory) forget(id podnet.Identity) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.seen, id)
}
