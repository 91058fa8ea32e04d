package controllers

import (
	"fmt"
	"hash/fnv"
	"io"
	"sync"
	"weak"

	"istio-pod-network-controller/iptables"
)

// compiled is a Spec with what is computed from it. It does not change: many pods share one.
type compiled struct {
	spec  iptables.Spec
	rules iptables.Ruleset
	// holding are the rules that have new connections wait for the proxy, by the families in which they do.
	holding map[iptables.Hold]func() (iptables.Ruleset, error)
	// hash is of the Spec and of its rules: another version of the agent may have other rules for it.
	hash string
}

// maxCompiled bounds the number of Specs that are shared. What is not remembered is computed again.
const maxCompiled = 256

// compiler computes the rules of Specs and shares them, because most pods of a node have the same Spec. It is the only memory of compiled
// rules; an Entry refers to its rules there. Rules without a pod are freed. The zero value is ready.
type compiler struct {
	mu   sync.Mutex
	done map[string]weak.Pointer[compiled] // by the Spec's hash
}

// compile returns the rules of a Spec.
func (c *compiler) compile(spec iptables.Spec) (*compiled, error) {
	key := spec.Hash()
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.done[key].Value(); known != nil {
		return known, nil
	}
	rules, err := iptables.Rules(spec)
	if err != nil {
		return nil, err
	}
	if c.done == nil || len(c.done) >= maxCompiled {
		c.done = map[string]weak.Pointer[compiled]{}
	}
	holding := map[iptables.Hold]func() (iptables.Ruleset, error){}
	for _, families := range []iptables.Hold{iptables.HoldIPv4, iptables.HoldIPv6, iptables.HoldBoth} {
		holding[families] = sync.OnceValues(func() (iptables.Ruleset, error) { return iptables.HoldingRules(spec, families) })
	}
	out := &compiled{spec: spec, rules: rules, holding: holding, hash: hashOf(key, rules)}
	c.done[key] = weak.Make(out)
	return out, nil
}

// ruleset returns the rules for a hold. Its hash is the same for all: rules that hold come and go while a pod runs.
func (c *compiled) ruleset(h hold) *iptables.Ruleset {
	if h.in != iptables.HoldNone {
		if rules, err := c.holding[h.in](); err == nil { // the same Spec has rules without it
			return &rules
		}
	}
	return &c.rules
}

// hashOf returns 16 hexadecimal digits.
func hashOf(spec string, rules iptables.Ruleset) string {
	h := fnv.New64a()
	_, _ = io.WriteString(h, spec+rules.NftText(iptables.TextOptions{})) // a Hash returns no error
	return fmt.Sprintf("%016x", h.Sum64())
}
