package foreign

import (
	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/rawnetlink"
)

// compare adds the conditions that count. All others count as passed.
func (r *nftReading) compare(a map[uint16][]byte) {
	r.conditional = true
	l := r.holds(a[unix.NFTA_CMP_SREG])
	data := rawnetlink.Attributes(a[unix.NFTA_CMP_DATA])[unix.NFTA_DATA_VALUE]
	op := number(a[unix.NFTA_CMP_OP])
	not := op == unix.NFT_CMP_NEQ
	if len(data) == 0 || op != unix.NFT_CMP_EQ && !not || anySet(l.xor) {
		return
	}
	switch l.from {
	case "meta":
		if l.mask == nil {
			r.compareMeta(l.key, data, not)
		}
	case "payload":
		r.comparePayload(l, data, not)
	}
}

func anySet(b []byte) bool {
	for _, x := range b {
		if x != 0 {
			return true
		}
	}
	return false
}

func (r *nftReading) compareMeta(key uint32, data []byte, not bool) {
	switch key {
	case unix.NFT_META_L4PROTO:
		r.protocol(data[0], not)
	case unix.NFT_META_NFPROTO:
		if !not {
			r.family = data[0]
		}
	case unix.NFT_META_PROTOCOL:
		if known := map[uint32]byte{unix.ETH_P_IP: unix.NFPROTO_IPV4, unix.ETH_P_IPV6: unix.NFPROTO_IPV6}[number(data)]; known != 0 && len(data) == 2 && !not {
			r.family = known
		}
	case unix.NFT_META_IIFNAME, unix.NFT_META_OIFNAME:
		if p, ok := patternAt(longestName, 0, data, nil); ok { // so nft writes both eth0, with a zero behind it, and eth*
			r.device(p.isOf, not, key == unix.NFT_META_IIFNAME)
		}
	case unix.NFT_META_IIF, unix.NFT_META_OIF:
		if want := u32(data, 0); len(data) == 4 {
			r.device(func(index uint32, _ string) bool { return index == want }, not, key == unix.NFT_META_IIF)
		}
	}
}

func (r *nftReading) comparePayload(l loaded, data []byte, not bool) {
	// Offsets of the source in the headers of IPv4 and IPv6; the destination follows.
	start, size := 12, 4
	if r.family == unix.NFPROTO_IPV6 {
		start, size = 8, 16
	}
	offset := int(min(l.key, 1<<16)) - start
	switch {
	case r.family != unix.NFPROTO_IPV4 && r.family != unix.NFPROTO_IPV6:
	case r.family == unix.NFPROTO_IPV4 && l.key == protocolOffset && len(data) == 1 && l.mask == nil:
		r.protocol(data[0], not)
	case offset >= 0 && offset < 2*size:
		if p, ok := patternAt(size, offset%size, data, l.mask); ok {
			r.address(p, offset < size, not)
		}
	}
}
