package kernel

import (
	"hash/maphash"
	"slices"
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
	// preemptedAge is how long foreign rules before ours are reported from memory, or left out because of addresses and devices: devices, with their
	// chains, and addresses come and go without a count.
	preemptedAge = time.Minute
	// maxKept bounds the rule sets whose elements are kept, maxKeptElements their elements: some megabytes.
	maxKept         = 256
	maxKeptElements = 1 << 17
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
	kept   map[uint64]iptables.Ruleset // by hash: rule sets in force, which pods share
	size   int                         // elements in kept
}

// seen is what is remembered of a namespace.
type seen struct {
	// ours is set from the first write of our rules until their removal. Another project is recognised by names only: a process of the pod
	// with NET_ADMIN can delete our rules and create chains of such names. In a namespace that had our rules they are restored nevertheless.
	ours bool
	verification
}

// verification is what the last Apply has found, or has written while nobody else wrote anything. There is none for a namespace with foreign
// rules before ours and a table that goes with its owner's process, which the kernel does not count.
type verification struct {
	rules  foreign.State   // of all rules in the namespace, read before everything else
	want   uint64          // hash of the rules that are in force
	chains *iptables.Chain // the first of the chains that want is the hash of; a Ruleset is not changed once it is made
	at     time.Time       // when it began
	routes time.Time       // when routes were compared last
	legacy time.Time       // when tables of x_tables were looked for last
	by     Driver          // wrote our rules
	// preempted are foreign rules before ours.
	preempted []string
	// around is set if others were left out because of the addresses and devices of the namespace.
	around bool
}

func newMemory() *memory {
	return &memory{reader: foreign.NewReader(), seed: maphash.MakeSeed(), now: time.Now, seen: map[podnet.Identity]seen{}, kept: map[uint64]iptables.Ruleset{}}
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

// unchanged reports whether nothing in the namespace has changed since the last Apply, and returns what that has found. The
// namespace has the addresses and routes of want.
func (m *memory) unchanged(ns *netns.NS, id podnet.Identity, now verification, want iptables.Ruleset) (last verification, same bool, err error) {
	last = m.of(id).verification
	age := now.at.Sub(last.at)
	old := now.rules.Legacy != 0 && age >= legacyAge || (len(last.preempted) > 0 || last.around) && age >= preemptedAge
	if last.at.IsZero() || old || last.rules != now.rules {
		return last, false, nil
	}
	compare := routing.Drift
	if !want.Routing && now.at.Sub(last.routes) < routesAge {
		compare, now.routes = routing.AddressDrift, last.routes
	}
	if drift, err := compare(ns, want); err != nil || len(drift) > 0 {
		return last, false, err
	}
	if want.Routing {
		before, err := routing.Before(ns)
		if err != nil || slices.ContainsFunc(before, func(line string) bool { return !slices.Contains(last.preempted, line) }) {
			return last, false, err
		}
	}
	last.routes, last.legacy = now.routes, now.legacy
	return last, true, nil
}

// onlyOurs reports whether nothing but our own transactions has changed rules since before, and returns the State after them.
func (m *memory) onlyOurs(ns *netns.NS, before foreign.State, transactions int) (after foreign.State, ok bool) {
	if transactions == 0 {
		return before, false
	}
	after, ok = m.reader.State(ns)
	return after, ok && after == before.After(transactions)
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

// verified remembers that a namespace holds want.
func (m *memory) verified(id podnet.Identity, found verification, want iptables.Ruleset) {
	m.change(id, func(s *seen) { s.verification = found })
	m.keep(found.want, want)
}

// keep keeps a rule set, for the changes that make another one of it.
func (m *memory) keep(hash uint64, rules iptables.Ruleset) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.kept[hash]; ok {
		return
	}
	size := 0
	for _, s := range rules.Sets {
		size += len(s.Ranges) + len(s.Prefixes)
	}
	if len(m.kept) >= maxKept || m.size+size > maxKeptElements {
		clear(m.kept)
		m.size = 0
	}
	m.kept[hash] = rules
	m.size += size
}

// rules returns the rule set of a hash, if it is kept.
func (m *memory) rules(hash uint64) (rules iptables.Ruleset, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	rules, ok = m.kept[hash]
	return rules, ok
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
