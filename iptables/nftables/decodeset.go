package nftables

import (
	"encoding/binary"
	"net/netip"
	"slices"

	nft "github.com/google/nftables"
	"golang.org/x/sys/unix"

	"istio-pod-network-controller/iptables"
)

// element is a set's element as the kernel tells of it.
type element struct {
	key []byte
	end bool // of an interval
}

func decodeElement(e attr) element {
	parts := split(e.data)
	return element{
		key: slices.Clone(find(split(find(parts, unix.NFTA_SET_ELEM_KEY)), unix.NFTA_DATA_VALUE)),
		end: number(find(parts, unix.NFTA_SET_ELEM_FLAGS))&unix.NFT_SET_ELEM_INTERVAL_END != 0,
	}
}

// decodeSet gives a set for people to read. Elements that no set of ours can have are left out.
func decodeSet(name, attrs string, elements []element) iptables.Set {
	out := iptables.Set{Name: printable(baseName(name))}
	switch number(find(split([]byte(attrs)), unix.NFTA_SET_KEY_TYPE)) {
	case nft.TypeIPAddr.GetNFTMagic():
		out.Kind, out.Prefixes = iptables.IPv4Set, prefixes(elements, 4)
	case nft.TypeIP6Addr.GetNFTMagic():
		out.Kind, out.Prefixes = iptables.IPv6Set, prefixes(elements, 16)
	case nft.TypeInetService.GetNFTMagic():
		out.Kind = iptables.PortSet
		for _, e := range elements {
			if len(e.key) == 2 {
				out.Ports = append(out.Ports, binary.BigEndian.Uint16(e.key))
			}
		}
	}
	slices.Sort(out.Ports)
	return out
}

// prefixes joins the first addresses of intervals with those behind their ends: since intervals do not overlap, the n-th
// of one belongs to the n-th of the other, and only the last may lack an end.
func prefixes(elements []element, size int) []netip.Prefix {
	var starts, ends []netip.Addr
	for _, e := range elements {
		a, ok := netip.AddrFromSlice(e.key)
		switch {
		case !ok || len(e.key) != size:
		case e.end:
			ends = append(ends, a)
		default:
			starts = append(starts, a)
		}
	}
	slices.SortFunc(starts, netip.Addr.Compare)
	slices.SortFunc(ends, netip.Addr.Compare)
	// nftables' own tool opens a set whose first interval starts above zero with an end at zero.
	if len(ends) > 0 && ends[0].IsUnspecified() {
		ends = ends[1:]
	}
	var out []netip.Prefix
	for i, start := range starts {
		var end netip.Addr
		if i < len(ends) {
			end = ends[i]
		}
		out = append(out, prefixOf(start, end))
	}
	return out
}

// prefixOf gives the prefix from start up to, not including, end; an invalid end is the end of the address space. An
// interval that is no prefix gives the widest that fits, which then differs from all that we write.
func prefixOf(start, end netip.Addr) netip.Prefix {
	for bits := range start.BitLen() {
		p := netip.PrefixFrom(start, bits)
		if p.Masked().Addr() == start && lastAddr(p).Next() == end {
			return p
		}
	}
	return netip.PrefixFrom(start, start.BitLen())
}
