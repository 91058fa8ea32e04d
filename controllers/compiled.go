package controllers

import (
	"fmt"
	"hash/fnv"
	"io"
	"sync"
	"weak"

	"istio-pod-network-controller/iptables"
)

// compiled is a Spec and a hold with what is computed from them. It does not change: many pods share one.
type compiled struct {
	spec  iptables.Spec
	holds iptables.Hold
	rules iptables.Ruleset
	// hash is of the Spec and of its rules without a hold: these come and go while a pod runs, and another version of the agent may have other rules.
	hash string
}

// maxCompiled bounds the number of Specs that are shared. What is not remembered is computed again.
const maxCompiled = 256

// compiler computes the rules of Specs and shares them, because most pods of a node have the same Spec. It is the only memory of compiled
// rules; an Entry refers to its rules there. Rules without a pod are freed. The zero value is ready.
type compiler struct {
	mu   sync.Mutex
	done map[compiledKey]weak.Pointer[compiled]
}

// compiledKey is a Spec's hash, and a hold.
type compiledKey struct {
	spec  string
	holds iptables.Hold
}

// compile returns the rules of a Spec, which hold new connections of some families.
func (c *compiler) compile(spec iptables.Spec, holds iptables.Hold) (*compiled, error) {
	key := compiledKey{spec.Hash(), holds}
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.done[key].Value(); known != nil {
		return known, nil
	}
	plain, err := iptables.Rules(spec)
	if err != nil {
		return nil, err
	}
	rules := plain
	if holds != iptables.HoldNone {
		if rules, err = iptables.HoldingRules(spec, holds); err != nil {
			return nil, err
		}
	}
	if c.done == nil || len(c.done) >= maxCompiled {
		c.done = map[compiledKey]weak.Pointer[compiled]{}
	}
	out := &compiled{spec: spec, holds: holds, rules: rules, hash: hashOf(key.spec, plain)}
	c.done[key] = weak.Make(out)
	return out, nil
}

// hashOf returns 16 hexadecimal digits.
func hashOf(spec string, rules iptables.Ruleset) string {
	h := fnv.New64a()
	_, _ = io.WriteString(h, spec+rules.NftText(iptables.TextOptions{})) // a Hash returns no error
	return fmt.Sprintf("%016x", h.Sum64())
}
