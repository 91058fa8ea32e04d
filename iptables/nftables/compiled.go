package nftables

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync"

	"istio-pod-network-controller/iptables"
)

const (
	// maxReferences bounds the rule sets whose references are kept: some kilobytes each.
	maxReferences = 1024
	// maxRecorded bounds the transactions that are kept. Most pods of a node have the same rules. Long ones are not kept.
	maxRecorded = 16
)

// compiled is the memory of rule sets, by their hash: of transactions that make our table from nothing, whose encoding takes longer than the
// kernel takes to carry them out, and of references.
type compiled struct {
	seed         maphash.Seed
	mu           sync.Mutex
	transactions map[uint64]transaction
	references   map[uint64]reference
}

func newCompiled() *compiled {
	return &compiled{seed: maphash.MakeSeed(), transactions: map[uint64]transaction{}, references: map[uint64]reference{}}
}

// transaction returns the transaction that makes our table with want from nothing.
func (c *compiled) transaction(want iptables.Ruleset) (transaction, error) {
	hash := iptables.Hash(c.seed, want)
	if t, ok := known(c, c.transactions, hash); ok {
		return t, nil
	}
	t, err := create(want)
	if err == nil && t.size() <= usualSize {
		keep(c, c.transactions, maxRecorded, hash, t)
	}
	return t, err
}

// reference returns the reference of want.
func (c *compiled) reference(ctx context.Context, want iptables.Ruleset) (reference, error) {
	hash := iptables.Hash(c.seed, want)
	if ref, ok := known(c, c.references, hash); ok {
		return ref, nil
	}
	ref, err := learn(ctx, want)
	if err != nil {
		return ref, fmt.Errorf("read how the kernel returns these rules: %w", err)
	}
	keep(c, c.references, maxReferences, hash, ref)
	return ref, nil
}

func known[V any](c *compiled, all map[uint64]V, hash uint64) (v V, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok = all[hash]
	return v, ok
}

func keep[V any](c *compiled, all map[uint64]V, most int, hash uint64, v V) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(all) >= most {
		clear(all)
	}
	all[hash] = v
}

// create returns the transaction that makes our table with want from nothing.
func create(want iptables.Ruleset) (transaction, error) {
	t, err := fill(".0", want.Chains, nil, want.Sets)
	return append(transaction{newTable()}, t...), err
}
