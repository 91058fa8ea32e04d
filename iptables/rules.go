package iptables

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// Rules returns what a pod's namespace must hold for spec. It has rules for both families (unless IPv6 stays direct), whatever
// addresses the pod has now: it may get others later. The rules have the order of Istio's own rule set.
func Rules(spec Spec) (Ruleset, error) {
	if err := spec.Validate(); err != nil {
		return Ruleset{}, fmt.Errorf("compute rules: %w", err)
	}
	d := &declared{}
	chains := append(outbound(spec, d), inbound(spec, d)...)
	chains = slices.Concat(chains, divert(spec, d, chains), zones(spec))
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
	return []string{chainOutbound, chainReusedOut, chainInbound, chainReusedIn, chainMark, chainDivert, chainDNSOut, chainDNSIn, chainAway, chainLostOut, chainLostIn, chainMarkLo, chainLookups}
}

const commentDirectIPv6 = "IPv6 stays direct"

// withoutIPv6 returns a Ruleset that leaves all IPv6 traffic alone: IPv6 rules and sets are removed, and the remaining rules do not see
// IPv6 packets. Policy routes stay, since no IPv6 packet is marked.
func withoutIPv6(r Ruleset) Ruleset {
	isIPv6 := func(c Cond) bool { return c.Field == Family && c.Num == IPv6 }
	out := Ruleset{Routing: r.Routing}
	for _, s := range r.Sets {
		if s.Kind != IPv6Set {
			out.Sets = append(out.Sets, s)
		}
	}
	for _, c := range r.Chains {
		kept := &rules{}
		kept.add(commentDirectIPv6, direct(), num(Family, IPv6))
		for _, rule := range c.Rules {
			if !slices.ContainsFunc(rule.Conds, isIPv6) {
				*kept = append(*kept, rule)
			}
		}
		c.Rules = *kept
		out.Chains = append(out.Chains, c)
	}
	return out
}
