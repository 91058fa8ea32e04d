package nftables

import (
	"encoding/binary"
	"net/netip"
	"slices"

	nft "github.com/google/nftables"
	"golang.org/x/sys/unix"

	"istio-pod-network-controller/iptables"
)

// element is a set's element as the kernel returns it. There may be many, so it holds no pointers.
type element struct {
	bytes [16]byte
	size  int  // of the key; more than 16 is in no set of ours
	end   bool // the end of an interval
}

func decodeElement(e attr) (out element) {
	key := find(find(e.data, unix.NFTA_SET_ELEM_KEY), unix.NFTA_DATA_VALUE)
	copy(out.bytes[:], key)
	out.size = len(key)
	out.end = number(find(e.data, unix.NFTA_SET_ELEM_FLAGS))&unix.NFT_SET_ELEM_INTERVAL_END != 0
	return out
}

// decodeSet returns a set to be printed. Elements that no set of ours can have are left out.
func decodeSet(name, attrs string, elements []element) iptables.Set {
	out := iptables.Set{Name: printable(baseName(name))}
	switch number(find([]byte(attrs), unix.NFTA_SET_KEY_TYPE)) {
	case nft.TypeIPAddr.GetNFTMagic():
		out.Kind, out.Prefixes = iptables.IPv4Set, prefixes(elements, 4)
	case nft.TypeIP6Addr.GetNFTMagic():
		out.Kind, out.Prefixes = iptables.IPv6Set, prefixes(elements, 16)
	case nft.TypeInetService.GetNFTMagic():
		out.Kind = iptables.PortSet
		for _, e := range elements {
			if e.size == 2 {
				out.Ports = append(out.Ports, binary.BigEndian.Uint16(e.bytes[:]))
			}
		}
	}
	slices.Sort(out.Ports)
	return out
}

// prefixes joins the starts of intervals with their ends (the first addresses behind them). Intervals do not overlap, so the n-th start
// belongs to the n-th end; only the last may have no end.
func prefixes(elements []element, size int) []netip.Prefix {
	starts, ends := make([]netip.Addr, 0, len(elements)), make([]netip.Addr, 0, len(elements)/2)
	for _, e := range elements {
		if e.size != size {
			continue
		}
		a, _ := netip.AddrFromSlice(e.bytes[:size])
		if e.end {
			ends = append(ends, a)
		} else {
			starts = append(starts, a)
		}
	}
	slices.SortFunc(starts, netip.Addr.Compare)
	slices.SortFunc(ends, netip.Addr.Compare)
	// The nft program adds an end at zero to a set whose first interval starts above zero.
	if len(ends) > 0 && ends[0].IsUnspecified() {
		ends = ends[1:]
	}
	out := make([]netip.Prefix, 0, len(starts))
	for i, start := range starts {
		var end netip.Addr
		if i < len(ends) {
			end = ends[i]
		}
		out = append(out, prefixOf(start, end))
	}
	return out
}

// prefixOf returns the prefix from start up to, not including, end. An invalid end means the end of the address space. If the
// interval is no prefix, it returns the address start alone, which then differs from what we write.
func prefixOf(start, end netip.Addr) netip.Prefix {
	for bits := range start.BitLen() {
		p := netip.PrefixFrom(start, bits)
		if p.Masked().Addr() == start && lastAddr(p).Next() == end {
			return p
		}
	}
	return netip.PrefixFrom(start, start.BitLen())
}
