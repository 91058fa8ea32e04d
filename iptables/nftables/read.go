package nftables

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/iptables"
)

// Bounds of what is read to be printed: more than any pod's rules have.
const (
	maxShownRules    = 4096
	maxShownElements = 1 << 15
	// moreShown is how many more elements than wanted are read to show what differs.
	moreShown = 1000
)

// show returns what our table holds, to be printed: sets by name, chains and rules in the kernel's order. What somebody else has added
// appears as a rule, set or chain that differs from ours. No content of the table is an error. At most left elements are read.
func (s *socket) show(ctx context.Context, o outline, left int) (out iptables.Ruleset, err error) {
	if !o.exists() || o.flags()&tableFlagDormant != 0 { // rules of a dormant table have no effect
		return out, nil
	}
	for _, name := range slices.Sorted(maps.Keys(o.sets)) {
		elements, err := s.showElements(ctx, name, left)
		if ctx.Err() != nil {
			return out, err
		}
		set := decodeSet(name, o.sets[name], elements)
		if err != nil {
			set.Name += "-and-more"
		}
		left -= len(elements)
		out.Sets = append(out.Sets, set)
	}
	slices.SortStableFunc(out.Sets, func(a, b iptables.Set) int { return strings.Compare(a.Name, b.Name) })
	for _, name := range slices.Sorted(maps.Keys(o.chains)) {
		out.Chains = append(out.Chains, decodeChain(name, o.chains[name]))
	}
	if err := s.showRules(ctx, &out); ctx.Err() != nil {
		return out, err
	}
	return iptables.Ordered(out), nil
}

func (s *socket) showElements(ctx context.Context, set string, most int) (out []element, err error) {
	err = s.list(ctx, unix.NFT_MSG_GETSETELEM, ofSet(set), func(b []byte) error {
		for e := range each(find(b, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			if len(out) >= most {
				return errTooMuch
			}
			out = append(out, decodeElement(e))
		}
		return nil
	})
	return out, err
}

// showRules adds the rules to their chains. It also adds chains that are not ours if they have rules.
func (s *socket) showRules(ctx context.Context, out *iptables.Ruleset) error {
	count := 0
	var last *iptables.Chain
	err := s.list(ctx, unix.NFT_MSG_GETRULE, named(nil, unix.NFTA_RULE_TABLE, iptables.TableName), func(b []byte) error {
		name := text(find(b, unix.NFTA_RULE_CHAIN))
		if last == nil || last.Name != printable(name) {
			last = chainIn(out, printable(name))
		}
		if count++; count > maxShownRules {
			return errTooMuch
		}
		last.Rules = append(last.Rules, decodeRule(b))
		return nil
	})
	if err != nil && last != nil {
		last.Rules = append(last.Rules, iptables.Rule{Comment: fmt.Sprintf("not ours: what follows was not read: %s", err), Uncounted: true})
	}
	return err
}

// chainIn returns the chain with a name, and adds it if there is none.
func chainIn(out *iptables.Ruleset, name string) *iptables.Chain {
	i := slices.IndexFunc(out.Chains, func(c iptables.Chain) bool { return c.Name == name })
	if i < 0 {
		i = len(out.Chains)
		out.Chains = append(out.Chains, iptables.Chain{Name: name, Hook: "none"})
	}
	return &out.Chains[i]
}

// decodeChain returns a chain without its rules.
func decodeChain(name, attrs string) iptables.Chain {
	list := []byte(attrs)
	out := iptables.Chain{Name: name, Type: iptables.ChainType(printable(text(find(list, unix.NFTA_CHAIN_TYPE)))), Hook: "none"}
	hook := find(list, unix.NFTA_CHAIN_HOOK)
	number, priority := find(hook, unix.NFTA_HOOK_HOOKNUM), find(hook, unix.NFTA_HOOK_PRIORITY)
	if len(number) != 4 || len(priority) != 4 {
		return out
	}
	out.Priority = int32(binary.BigEndian.Uint32(priority)) //nolint:gosec // the kernel's own negative number
	out.Hook = iptables.Hook(fmt.Sprintf("hook-%d", binary.BigEndian.Uint32(number)))
	for _, known := range []iptables.Hook{iptables.Prerouting, iptables.Output} {
		if uint32(*hookNumber(known)) == binary.BigEndian.Uint32(number) {
			out.Hook = known
		}
	}
	return out
}
