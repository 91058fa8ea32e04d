package iptables

import "slices"

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
