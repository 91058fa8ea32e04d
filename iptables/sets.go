package iptables

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// canonicalPorts returns ports sorted and without duplicates.
func canonicalPorts(ports []uint16) []uint16 {
	out := slices.Clone(ports)
	slices.Sort(out)
	return slices.Compact(out)
}

// canonicalPrefixes returns prefixes of one family masked, sorted, and without those that another one contains: the kernel
// refuses overlapping intervals.
func canonicalPrefixes(prefixes []netip.Prefix) []netip.Prefix {
	in := make([]netip.Prefix, len(prefixes))
	for i, p := range prefixes {
		in[i] = p.Masked()
	}
	slices.SortFunc(in, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	var out []netip.Prefix
	for _, p := range in {
		// A prefix sorts behind the wider one that contains it; between them are only prefixes inside the wider one.
		if len(out) == 0 || !out[len(out)-1].Contains(p.Addr()) {
			out = append(out, p)
		}
	}
	return out
}

func splitFamilies(prefixes []netip.Prefix) (v4, v6 []netip.Prefix) {
	for _, p := range prefixes {
		if p.Addr().Is4() {
			v4 = append(v4, p)
		} else {
			v6 = append(v6, p)
		}
	}
	return v4, v6
}

func sorted(sets []Set) []Set {
	slices.SortFunc(sets, func(a, b Set) int { return strings.Compare(a.Name, b.Name) })
	return sets
}
