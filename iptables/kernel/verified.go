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

// maxVerified bounds the memory. Where nothing is remembered, everything is read once more.
const maxVerified = 4096

// routesAge is how long routes are not looked at in a namespace whose rules need none. What is left of a former mode does nothing there.
const routesAge = time.Minute

// noLegacyAge is how long tables of x_tables are not looked for in a namespace that had none.
const noLegacyAge = 30 * time.Second

// legacyAge is how long the memory of a namespace with tables of x_tables is used. They have no count of changes: a process that changes
// a table while it is being read, and back, is not noticed.
const legacyAge = time.Minute

// verified remembers, for each namespace, the last Apply that found nothing to do. While no packet filter rule in the namespace changes,
// the next one needs to compare addresses and routes only: the kernel does not count their changes.
//
// A namespace without a cookie is not remembered, since a later namespace could have the same inode. Nor is one with rules of others before
// ours: the kernel counts no change when a table goes with the process that owns it.
type verified struct {
	reader foreign.Reader
	seed   maphash.Seed
	now    func() time.Time
	mu     sync.Mutex
	seen   map[podnet.Identity]verification
}

// verification is what an Apply has found.
type verification struct {
	rules  foreign.State   // of all rules in the namespace, read before everything else
	want   uint64          // hash of the rules that are in force
	chains *iptables.Chain // the first of the chains that want is the hash of; a Ruleset is not changed once it is made
	at     time.Time       // when it began
	routes time.Time       // when routes were compared last
	legacy time.Time       // when tables of x_tables were looked for last
}

func newVerified() *verified {
	return &verified{reader: foreign.NewReader(), seed: maphash.MakeSeed(), now: time.Now, seen: map[podnet.Identity]verification{}}
}

// begin reads what to remember if the Apply that follows finds nothing to do. ok is false if nothing can be remembered.
func (v *verified) begin(ns *netns.NS, id podnet.Identity, want iptables.Ruleset) (now verification, ok bool) {
	if id.Cookie == 0 {
		return now, false
	}
	seen := v.of(id)
	now.at = v.now()
	now.routes, now.legacy = now.at, now.at
	now.chains = first(want.Chains)
	if now.chains != nil && seen.chains == now.chains {
		now.want = seen.want
	} else {
		now.want = want.Hash(v.seed)
	}
	if seen.rules.Legacy == 0 && now.at.Sub(seen.legacy) < noLegacyAge {
		now.legacy = seen.legacy
		now.rules, ok = v.reader.WithoutLegacy(ns)
	} else {
		now.rules, ok = v.reader.State(ns)
	}
	return now, ok
}

// unchanged reports whether the namespace still holds want, and nothing in it has changed since an Apply found nothing to do.
func (v *verified) unchanged(ns *netns.NS, id podnet.Identity, now verification, want iptables.Ruleset) (same bool, err error) {
	seen := v.of(id)
	old := now.rules.Legacy != 0 && now.at.Sub(seen.at) >= legacyAge
	if seen.at.IsZero() || old || seen.rules != now.rules || seen.want != now.want {
		return false, nil
	}
	compare := routing.Drift
	if len(want.Routing) == 0 && now.at.Sub(seen.routes) < routesAge {
		compare, now.routes = routing.AddressDrift, seen.routes
	}
	if drift, err := compare(ns, want); err != nil || len(drift) > 0 {
		return false, err
	}
	seen.routes, seen.legacy = now.routes, now.legacy
	v.add(id, seen)
	return true, nil
}

// of returns what was added for a namespace; the zero value if nothing was.
func (v *verified) of(id podnet.Identity) verification {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.seen[id]
}

func first(chains []iptables.Chain) *iptables.Chain {
	if len(chains) == 0 {
		return nil
	}
	return &chains[0]
}

func (v *verified) add(id podnet.Identity, found verification) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.seen) >= maxVerified {
		clear(v.seen) // nothing reports namespaces that are gone
	}
	v.seen[id] = found
}
