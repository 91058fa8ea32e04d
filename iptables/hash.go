package iptables

import "hash/maphash"

// Hash returns a hash of the sets and chains, without counters. Addresses and routes are not part of it.
func Hash(seed maphash.Seed, r Ruleset) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	for _, s := range r.Sets {
		maphash.WriteComparable(&h, [3]any{s.Name, s.Kind, [2]int{len(s.Ranges), len(s.Prefixes)}})
		for _, r := range s.Ranges {
			maphash.WriteComparable(&h, r)
		}
		for _, p := range s.Prefixes {
			maphash.WriteComparable(&h, p)
		}
	}
	for _, c := range r.Chains {
		maphash.WriteComparable(&h, [5]any{c.Name, c.Type, c.Hook, c.Priority, len(c.Rules)})
		for _, rule := range c.Rules {
			maphash.WriteComparable(&h, [3]any{rule.Action, rule.Comment, len(rule.Conds)})
			for _, cond := range rule.Conds {
				maphash.WriteComparable(&h, cond)
			}
		}
	}
	return h.Sum64()
}
