package controllers

import (
	"testing"

	"istio-pod-network-controller/iptables"
)

// The pods of a node share the rules of equal Specs, and a changed Spec has other rules.
func TestRulesAreComputedOnceForASpec(t *testing.T) {
	var c compiler
	compile := func(last *compiled, change func(*iptables.Spec)) *compiled {
		t.Helper()
		spec := iptables.DefaultSpec()
		if change != nil {
			change(&spec)
		}
		out, err := c.compile(spec, last)
		if err != nil {
			t.Fatal(err)
		}
		if out.hash != spec.Hash() {
			t.Errorf("compiled %s for %s", out.hash, spec.Hash())
		}
		return out
	}
	first := compile(nil, nil)
	if compile(nil, nil) != first || compile(first, nil) != first {
		t.Error("the rules of one Spec were computed twice")
	}
	other := func(s *iptables.Spec) { s.ExcludeInboundPorts = []uint16{22} }
	if compile(nil, other) == first || compile(first, other) == first {
		t.Error("another Spec has the same rules")
	}
	for n := range uint16(2 * maxCompiled) {
		compile(first, func(s *iptables.Spec) { s.ExcludeInboundPorts = []uint16{n + 1} })
	}
	if len(c.done) > maxCompiled {
		t.Errorf("%d Specs are remembered", len(c.done))
	}
}
