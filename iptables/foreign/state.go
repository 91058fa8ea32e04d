package foreign

import (
	"hash/maphash"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/rawnetlink"
)

// State stands for all packet filter rules in a namespace, whoever wrote them. Two equal States of one namespace mean that no rule has
// changed in between. Compare with ==.
type State struct {
	// Generation is nf_tables' own count of changes.
	Generation uint32
	// Legacy is a hash of the tables of x_tables, which counts no changes. 0 if there are none.
	Legacy uint64
}

// Pristine reports whether there has never been a packet filter rule in the namespace: nf_tables counts from 1 (nf_tables_init_net).
func (s State) Pristine() bool { return s == State{Generation: 1} }

// After returns the State after so many more transactions of nf_tables.
func (s State) After(transactions int) State {
	s.Generation += uint32(transactions)
	return s
}

// Reader reads States. The States of two Readers do not compare.
type Reader struct{ seed maphash.Seed }

// NewReader returns a Reader.
func NewReader() Reader { return Reader{seed: maphash.MakeSeed()} }

// State returns the namespace's State. ok is false if it cannot be known: the kernel does not answer, or a table is too large.
func (r Reader) State(ns *netns.NS) (s State, ok bool) {
	if s, ok = r.WithoutLegacy(ns); !ok {
		return s, false
	}
	err := ns.Inside(func() error {
		s.Legacy, ok = r.legacy()
		return nil
	})
	return s, ok && err == nil
}

// WithoutLegacy is State where there are no tables of x_tables. It does not look for them, which takes as long as all else.
func (Reader) WithoutLegacy(ns *netns.NS) (s State, ok bool) {
	err := ns.Inside(func() error {
		answers, err := native{ns: ns, end: time.Now().Add(limit)}.ask(get(unix.NFT_MSG_GETGEN, family{number: unix.NFPROTO_UNSPEC}))
		if len(answers) > 0 {
			s.Generation = rawnetlink.BigEndian(answers[0].Object()[unix.NFTA_GEN_ID])
		}
		return err
	})
	return s, err == nil && s.Generation != 0
}

// legacy hashes all tables of x_tables without their counters.
func (r Reader) legacy() (hash uint64, ok bool) {
	var h maphash.Hash
	h.SetSeed(r.seed)
	found := false
	for t, err := range legacyTables() {
		if err != nil {
			return 0, false
		}
		found = true
		_, _ = h.WriteString(t.names + t.name) // a Hash returns no error
		for _, entry := range t.each(0) {
			clear(entry[t.counters:t.size])
		}
		_, _ = h.Write(t.entries)
	}
	if !found {
		return 0, true
	}
	return h.Sum64(), true
}
