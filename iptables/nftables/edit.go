package nftables

import (
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
)

// edit is a change of one set's elements.
type edit struct{ added, removed iptables.Set }

// Edit makes a namespace that holds have at a generation of nf_tables hold want, by one transaction that changes elements of sets. The
// kernel refuses it at any later generation. done is false, and nothing was written, if it was refused, or if edits finds no such change.
func (b *Backend) Edit(ctx context.Context, ns *netns.NS, generation uint32, have, want iptables.Ruleset) (drift iptables.Drift, done bool, err error) {
	all := edits(have, want)
	if len(all) == 0 {
		return nil, false, nil
	}
	drift = editDrift(all)
	err = ns.Alone(ctx, func() (bool, error) { return false, nil }, func() error {
		sets, err := readSets(ctx, ns, iptables.TableName)
		suffix, ok := outline{sets: sets}.generation()
		if err != nil || !ok {
			return ctx.Err()
		}
		iptables.SawDrift(ctx, drift)
		done = editing(all, suffix).commit(ctx, ns, generation) == nil
		return ctx.Err()
	})
	return drift, done, err
}

// edits returns the changes of elements by which have becomes want. There are none if anything else differs, or if a packet could meet
// the sets in a state that is neither's. A packet looks up the current generation at each set. So, with the changes in one transaction:
//
//   - A set changes as a whole, and sets of IPv4 and of IPv6 are for different packets.
//   - Of two sets that one chain uses, a packet may meet the first before and the second after. It would pass by if the one no longer
//     captures it and the other did not yet.
//   - In an interval set, kernels before 6.17 do not find an address while an added interval overlaps a removed one around it.
func edits(have, want iptables.Ruleset) (all []edit) {
	sameName := func(a, b iptables.Set) bool { return a.Name == b.Name && a.Kind == b.Kind }
	if have.Loopback != want.Loopback || have.Routing != want.Routing || have.Unsourced ||
		!reflect.DeepEqual(have.Chains, want.Chains) || !slices.EqualFunc(have.Sets, want.Sets, sameName) {
		return nil
	}
	for i, h := range have.Sets {
		e := edit{added: lacking(want.Sets[i], h), removed: lacking(h, want.Sets[i])}
		switch {
		case !slices.Contains([]iptables.SetKind{iptables.PortSet, iptables.IPv4Set, iptables.IPv6Set}, h.Kind):
			return nil
		case size(e.added)+size(e.removed) == 0:
			continue
		case overlap(e.added.Prefixes, e.removed.Prefixes), slices.ContainsFunc(all, func(o edit) bool { return meet(want.Chains, o.added, e.added) }):
			return nil
		}
		all = append(all, e)
	}
	return all
}

// meet reports whether a chain may look up one packet in both sets.
func meet(chains []iptables.Chain, a, b iptables.Set) bool {
	if a.Kind != b.Kind && a.Kind != iptables.PortSet && b.Kind != iptables.PortSet {
		return false // one is for IPv4 and one for IPv6
	}
	uses := func(c iptables.Chain, set string) bool {
		return slices.ContainsFunc(c.Rules, func(r iptables.Rule) bool {
			return slices.ContainsFunc(r.Conds, func(c iptables.Cond) bool { return c.Set == set })
		})
	}
	return slices.ContainsFunc(chains, func(c iptables.Chain) bool { return uses(c, a.Name) && uses(c, b.Name) })
}

// lacking returns the set a with the elements that b does not have.
func lacking(a, b iptables.Set) iptables.Set {
	a.Ranges, a.Prefixes = difference(a.Ranges, b.Ranges, iptables.PortRange.Compare), difference(a.Prefixes, b.Prefixes, netip.Prefix.Compare)
	return a
}

// difference returns what is in a and not in b, which is sorted.
func difference[E any](a, b []E, compare func(E, E) int) []E {
	return slices.DeleteFunc(slices.Clone(a), func(e E) bool {
		_, in := slices.BinarySearchFunc(b, e, compare)
		return in
	})
}

// overlap reports whether any prefix of one list overlaps one of the other. Both are canonical.
func overlap(a, b []netip.Prefix) bool {
	for len(a) > 0 && len(b) > 0 {
		if a[0].Overlaps(b[0]) {
			return true
		}
		if a[0].Addr().Less(b[0].Addr()) {
			a = a[1:]
		} else {
			b = b[1:]
		}
	}
	return false
}

func size(s iptables.Set) int { return len(s.Ranges) + len(s.Prefixes) }

// editing returns the transaction of edits in sets of a generation.
func editing(all []edit, suffix string) (t transaction) {
	for _, e := range all {
		t = append(t, elementMessages(unix.NFT_MSG_DELSETELEM, e.removed, suffix)...)
		t = append(t, elementMessages(unix.NFT_MSG_NEWSETELEM, e.added, suffix)...)
	}
	return t
}

func editDrift(all []edit) (d iptables.Drift) {
	for _, e := range all {
		if n := size(e.added); n > 0 {
			d = append(d, iptables.Difference{Kind: iptables.KindSets, Text: fmt.Sprintf("- %d entries of set %s", n, e.added.Name)})
		}
		if n := size(e.removed); n > 0 {
			d = append(d, iptables.Difference{Kind: iptables.KindSets, Text: fmt.Sprintf("+ %d entries in set %s", n, e.removed.Name)})
		}
	}
	return d
}
