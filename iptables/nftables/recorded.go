package nftables

import (
	"sync"

	"istio-pod-network-controller/iptables"
)

// maxRecorded bounds the number of transactions that are kept. Most pods of a node have the same rules. Long ones are not kept.
const maxRecorded = 16

// recorded holds transactions that make our table from nothing, by the hash of the rule set. To make the messages of one takes longer than
// the kernel takes to carry them out.
type recorded struct {
	mu    sync.Mutex
	known map[uint64]transaction
}

func newRecorded() *recorded { return &recorded{known: map[uint64]transaction{}} }

// of returns the transaction for want, whose hash is given.
func (r *recorded) of(want iptables.Ruleset, hash uint64) (transaction, error) {
	r.mu.Lock()
	t, ok := r.known[hash]
	r.mu.Unlock()
	if ok {
		return t, nil
	}
	t, err := create(want)
	if err != nil || t.size() > usualSize {
		return t, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.known) >= maxRecorded {
		clear(r.known)
	}
	r.known[hash] = t
	return t, nil
}

// create returns the transaction that makes our table with want from nothing.
func create(want iptables.Ruleset) (transaction, error) {
	t, err := fill(".0", want.Chains, nil, want.Sets)
	return append(transaction{newTable()}, t...), err
}
