package controllers

import (
	"hash/maphash"
	goruntime "runtime"
	"slices"
	"testing"

	"istio-pod-network-controller/iptables"
)

// The pods of a node share the rules of equal Specs, and a changed Spec has other rules.
func TestCompile_equalSpecs_shareRules(t *testing.T) {
	var c compiler
	seed := maphash.MakeSeed()
	compile := func(change func(*iptables.Spec)) *compiled {
		t.Helper()
		spec := iptables.DefaultSpec()
		if change != nil {
			change(&spec)
		}
		out, err := c.compile(spec, iptables.HoldNone)
		if err != nil {
			t.Fatal(err)
		}
		if out.spec.Hash() != spec.Hash() {
			t.Errorf("compiled %+v for %+v", out.spec, spec)
		}
		return out
	}
	first := compile(nil)
	if compile(nil) != first {
		t.Error("the rules of one Spec were computed twice")
	}
	other := func(s *iptables.Spec) { s.ExcludeInboundPorts = []uint16{22} }
	if compile(other) == first {
		t.Error("another Spec has the same rules")
	}
	held, err := c.compile(iptables.DefaultSpec(), iptables.HoldBoth)
	if err != nil || held.hash != first.hash || iptables.Hash(seed, held.rules) == iptables.Hash(seed, first.rules) {
		t.Errorf("rules that hold: error %v, hash %s and %s", err, held.hash, first.hash)
	}
	for n := range uint16(2 * maxCompiled) {
		compile(func(s *iptables.Spec) { s.ExcludeInboundPorts = []uint16{n + 1} })
	}
	if len(c.done) > maxCompiled {
		t.Errorf("%d Specs are remembered", len(c.done))
	}
}

// A pod whose annotations are edited again and again has one set of rules in memory, not hundreds.
func TestCompile_rulesThatNoPodHas_areFreed(t *testing.T) {
	var c compiler
	var last *compiled
	for n := range uint16(100) {
		spec := iptables.DefaultSpec()
		spec.ExcludeInboundPorts = []uint16{n + 1}
		var err error
		if last, err = c.compile(spec, iptables.HoldNone); err != nil {
			t.Fatal(err)
		}
	}
	goruntime.GC()
	held := 0
	for _, rules := range c.done {
		if rules.Value() != nil {
			held++
		}
	}
	if held != 1 {
		t.Errorf("the rules of %d Specs are in memory, want those of the last one", held)
	}
	goruntime.KeepAlive(last)
}

// Two versions of the agent, of which one has another rule for the same Spec, must not take each other's rules for drift.
func TestHashOf_otherRules_differs(t *testing.T) {
	spec := iptables.DefaultSpec()
	rules, err := iptables.Rules(spec)
	if err != nil {
		t.Fatal(err)
	}
	before := hashOf(spec.Hash(), rules)
	rules.Chains = slices.Clone(rules.Chains)
	rules.Chains[0].Rules = rules.Chains[0].Rules[1:]
	after, other := hashOf(spec.Hash(), rules), hashOf("another", rules)
	if len(before) != 16 || before == after || after == other {
		t.Errorf("%s, without a rule %s, of another Spec %s", before, after, other)
	}
}
