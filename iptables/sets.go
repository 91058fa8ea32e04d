package iptables

import (
	"net/netip"
	"slices"
)

// canonicalPrefixes returns prefixes of one family masked, sorted, and without prefixes that another one contains: the kernel
// refuses overlapping intervals.
func canonicalPrefixes(prefixes []netip.Prefix) []netip.Prefix {
	in := make([]netip.Prefix, len(prefixes))
	for i, p := range prefixes {
		in[i] = p.Masked()
	}
	slices.SortFunc(in, netip.Prefix.Compare)
	var out []netip.Prefix
	for _, p := range in {
		// A prefix sorts behind a wider one around it; between them are only prefixes inside the wider one.
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

// declared are the sets that rules use, each once.
type declared []Set

// ports declares a set and returns its name, or "" if there are no ports.
func (d *declared) ports(name string, ports []uint16, ranges []PortRange) string {
	if len(ports)+len(ranges) == 0 {
		return ""
	}
	d.add(portSet(name, ports, ranges))
	return name
}

// prefixes declares and returns a set for each family that has prefixes.
func (d *declared) prefixes(name4, name6 string, all []netip.Prefix) []Set {
	var out []Set
	v4, v6 := splitFamilies(all)
	if len(v4) > 0 {
		out = append(out, Set{Name: name4, Kind: IPv4Set, Prefixes: canonicalPrefixes(v4)})
	}
	if len(v6) > 0 {
		out = append(out, Set{Name: name6, Kind: IPv6Set, Prefixes: canonicalPrefixes(v6)})
	}
	for _, s := range out {
		d.add(s)
	}
	return out
}

func (d *declared) add(s Set) {
	if !slices.ContainsFunc(*d, func(known Set) bool { return known.Name == s.Name }) {
		*d = append(*d, s)
	}
}

// portSet returns a set of ports, of intervals if there are ranges.
func portSet(name string, ports []uint16, ranges []PortRange) Set {
	if len(ranges) == 0 {
		return Set{Name: name, Kind: PortSet, Ranges: single(slices.Compact(slices.Sorted(slices.Values(ports))))}
	}
	return Set{Name: name, Kind: RangeSet, Ranges: JoinPorts(ports, ranges)}
}
