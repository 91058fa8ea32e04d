package nftables

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/rawnetlink"
	"istio-pod-network-controller/iptables"
)

// Bounds of what is read to be printed: more than any pod's rules have.
const (
	maxShownRules    = 4096
	maxShownElements = 1 << 15
)

// show returns what a table of ours holds, to be printed: sets by name, chains and rules in the kernel's order. No content of the table is an
// error.
func show(ctx context.Context, ns *netns.NS, o outline) (out iptables.Ruleset, err error) {
	out.Table = o.name
	if o.flags()&tableFlagDormant != 0 { // its rules have no effect
		return out, nil
	}
	for _, name := range slices.Sorted(maps.Keys(o.sets)) {
		set, err := showSet(ctx, ns, o, name)
		if ctx.Err() != nil {
			return out, err
		}
		if err != nil {
			set.Name += "-and-more"
		}
		out.Sets = append(out.Sets, set)
	}
	for _, name := range iptables.ChainNames() {
		if attrs, ok := o.chains[name]; ok {
			out.Chains = append(out.Chains, decodeChain(name, attrs))
		}
	}
	if err := showRules(ctx, ns, o.name, &out); ctx.Err() != nil {
		return out, err
	}
	return out, nil
}

// showSet reads a set. The elements of an interval are its start, and the first address or port behind it.
func showSet(ctx context.Context, ns *netns.NS, o outline, name string) (set iptables.Set, err error) {
	var starts, ends [][]byte
	err = list(ctx, ns, elementsOf(o.name, name), func(b []byte) error {
		for _, e := range rawnetlink.Each(find(b, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			key := bytes.Clone(find(find(e, unix.NFTA_SET_ELEM_KEY), unix.NFTA_DATA_VALUE))
			switch {
			case len(starts)+len(ends) >= maxShownElements:
				return errTooMuch
			case rawnetlink.BigEndian(find(e, unix.NFTA_SET_ELEM_FLAGS))&unix.NFT_SET_ELEM_INTERVAL_END != 0:
				ends = append(ends, key)
			default:
				starts = append(starts, key)
			}
		}
		return nil
	})
	set = iptables.Set{Name: printable(baseName(name)), Kind: iptables.PortSet}
	attrs := []byte(o.sets[name])
	switch kind := rawnetlink.BigEndian(find(attrs, unix.NFTA_SET_KEY_TYPE)); {
	case kind == typeIPv4:
		set.Kind = iptables.IPv4Set
	case kind == typeIPv6:
		set.Kind = iptables.IPv6Set
	case rawnetlink.BigEndian(find(attrs, unix.NFTA_SET_FLAGS))&unix.NFT_SET_INTERVAL != 0:
		set.Kind = iptables.RangeSet
	}
	showElements(&set, starts, ends)
	return set, err
}

// showElements adds elements to a set. Intervals do not overlap, so the n-th start belongs to the n-th end; only the last may have none.
func showElements(set *iptables.Set, starts, ends [][]byte) {
	slices.SortFunc(starts, bytes.Compare)
	slices.SortFunc(ends, bytes.Compare)
	// The nft program adds an end at zero to a set whose first interval starts above zero.
	if len(ends) > 0 && bytes.Count(ends[0], []byte{0}) == len(ends[0]) {
		ends = ends[1:]
	}
	for i, start := range starts {
		var behind []byte
		if i < len(ends) {
			behind = ends[i]
		}
		address, isAddress := netip.AddrFromSlice(start)
		port := uint16(rawnetlink.BigEndian(start))
		switch {
		case isAddress:
			set.Prefixes = append(set.Prefixes, prefix(address, behind))
		case set.Kind == iptables.RangeSet: // without an end it is the highest port, which is 0 less one
			set.Ranges = append(set.Ranges, iptables.PortRange{First: port, Last: uint16(rawnetlink.BigEndian(behind)) - 1})
		default:
			set.Ranges = append(set.Ranges, iptables.PortRange{First: port, Last: port})
		}
	}
}

// prefix returns the prefix that an interval of addresses is. Of an interval that is no prefix, the start is returned.
func prefix(start netip.Addr, behind []byte) netip.Prefix {
	end, _ := netip.AddrFromSlice(behind)
	bits := 0
	for bits < start.BitLen() && (netip.PrefixFrom(start, bits).Masked().Addr() != start || lastAddr(netip.PrefixFrom(start, bits)).Next() != end) {
		bits++
	}
	return netip.PrefixFrom(start, bits)
}

// showRules adds the rules to their chains. It also adds chains that are not ours if they have rules.
func showRules(ctx context.Context, ns *netns.NS, table string, out *iptables.Ruleset) error {
	count := 0
	var last *iptables.Chain
	err := list(ctx, ns, rulesOf(table), func(b []byte) error {
		name := rawnetlink.Name(find(b, unix.NFTA_RULE_CHAIN))
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
		out.Chains = append(out.Chains, iptables.Chain{Name: name})
	}
	return &out.Chains[i]
}

// decodeChain returns a chain without its rules.
func decodeChain(name, attrs string) iptables.Chain {
	list := []byte(attrs)
	out := iptables.Chain{Name: name, Type: iptables.ChainType(printable(rawnetlink.Name(find(list, unix.NFTA_CHAIN_TYPE))))}
	hook := find(list, unix.NFTA_CHAIN_HOOK)
	number, priority := find(hook, unix.NFTA_HOOK_HOOKNUM), find(hook, unix.NFTA_HOOK_PRIORITY)
	if len(number) != 4 || len(priority) != 4 {
		return out
	}
	out.Priority = int32(binary.BigEndian.Uint32(priority))
	out.Hook = iptables.Hook(fmt.Sprintf("hook-%d", binary.BigEndian.Uint32(number)))
	for _, known := range []iptables.Hook{iptables.Prerouting, iptables.Input, iptables.Output} {
		if hookNumber(known) == binary.BigEndian.Uint32(number) {
			out.Hook = known
		}
	}
	return out
}
