package xtables

import (
	"context"
	"maps"
	"slices"
	"strings"

	"istio-pod-network-controller/iptables"
)

// Describe returns the rules of ours that the namespace at path holds, in words and with counters; none if there are none.
func (b *Backend) Describe(ctx context.Context, path string) ([]iptables.Line, error) {
	have, _, err := b.Read(ctx, path)
	return have.Lines(), err
}

// Lines returns the rules in words. A rule that both families have is one line.
func (l Listing) Lines() []iptables.Line {
	return iptables.JoinFamilies(l.rules[iptables.IPv4].ruleset().Lines(), l.rules[iptables.IPv6].ruleset().Lines())
}

// ruleset returns the chains of one family with priorities that have the order in which packets pass them, to be printed.
func (s state) ruleset() (out iptables.Ruleset) {
	for i, name := range s.names() {
		t := s[name]
		for _, chain := range slices.Sorted(maps.Keys(t.chains)) {
			c := iptables.Chain{Name: chain, Type: iptables.Filter, Rules: read(t.chains[chain])}
			if name == "nat" {
				c.Type = iptables.NAT
			}
			for _, j := range t.jumps {
				if j.target() == chain {
					c.Hook = iptables.Hook(strings.ToLower(j.chain))
					c.Priority = int32(i*len(iptables.ChainNames()) + j.position) //nolint:gosec // a few
				}
			}
			out.Chains = append(out.Chains, c)
		}
	}
	return out
}

// read returns a chain's rules to be printed. Where we write two rules for one action, they are one again.
func read(rules []rule) (out []iptables.Rule) {
	for _, r := range rules {
		next := iptables.ReadRestoreRule(r.words())
		next.Counter = r.counter
		if n := len(out); n > 0 && completes(out[n-1], next) {
			if out[n-1].Action.Verb == iptables.SetMark {
				out[n-1].Action.Verb = iptables.Divert
			}
			continue
		}
		out = append(out, next)
	}
	return out
}

// completes reports whether a rule only ends the chain for the packets of the rule before it, whose target does not.
func completes(before, r iptables.Rule) bool {
	goesOn := slices.Contains([]iptables.Verb{iptables.SetMark, iptables.SaveMark, iptables.RestoreMark, iptables.Zone}, before.Action.Verb)
	return goesOn && r.Action.Verb == iptables.Return && before.Comment == r.Comment && slices.Equal(before.Conds, r.Conds)
}
