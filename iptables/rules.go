package iptables

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// Rules returns what a pod's namespace must hold for spec. It has rules for both families (unless IPv6 stays direct), whatever
// addresses the pod has now: it may get others later. The rules have the order of Istio's own rule set.
func Rules(spec Spec) (Ruleset, error) { return HoldingRules(spec, HoldNone) }

// HoldingRules returns Rules, and has new connections of some families wait for a proxy that does not listen yet.
func HoldingRules(spec Spec, holds Hold) (Ruleset, error) {
	if err := spec.Validate(); err != nil {
		return Ruleset{}, fmt.Errorf("compute rules: %w", err)
	}
	d := &declared{}
	chains := append(outbound(spec, d), inbound(spec, d)...)
	chains = slices.Concat(chains, divert(spec, d, chains), zones(spec))
	chains = append(chains, hold(spec, holds)...)
	slices.SortFunc(*d, func(a, b Set) int { return cmp.Compare(a.Name, b.Name) })
	out := Ruleset{Sets: *d, Chains: chains, Loopback: true, Routing: spec.divertsInbound()}
	if spec.DirectIPv6 {
		out = withoutIPv6(out)
	}
	return out, nil
}

// LoopbackAddr returns the address that a Ruleset may add to lo: IPv4's is there.
func LoopbackAddr() netip.Prefix { return passthrough()[1] }

// ChainNames returns the names of all chains that any Ruleset may have, in the order of Rules.
func ChainNames() []string {
	return []string{chainOutbound, chainReusedOut, chainInbound, chainReusedIn, chainMark, chainDivert, chainDNSOut, chainDNSIn, chainAway, chainLostOut, chainLostIn, chainMarkLo, chainLookups, chainHold}
}
