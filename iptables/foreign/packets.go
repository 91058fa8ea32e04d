package foreign

import (
	"bytes"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/iptables"
)

// packets are the packets that our rules decide about.
type packets struct {
	// udp reports whether lookups over UDP are among them. TCP always is.
	udp bool
	// marks and connMarks are the bits that our rules read of the marks of packets and connections.
	marks, connMarks uint32
	// wholeMarks reports whether another bit in a mark takes a packet from the proxy. With TPROXY it does: the rules and the policy route compare whole
	// marks. Otherwise a mark only leaves packets alone that the proxy has already.
	wholeMarks bool
	// anywhere reports whether packets with addresses that are not the pod's are among them: of virtual machines behind the pod, or, with TPROXY,
	// of connections in a client's name.
	anywhere bool
	// all has every rule count, whatever it matches.
	all bool
	// out reports whether they are seen at hook output.
	out bool
	// around returns the namespace's addresses and devices. It may be called often.
	around func() surroundings
}

// packetsOf returns the packets that a Ruleset decides about.
func packetsOf(want iptables.Ruleset) (p packets) {
	p.anywhere, p.wholeMarks = want.Routing, want.Routing
	if want.Routing {
		p.marks = iptables.RouteMark
	}
	for _, c := range want.Chains {
		for _, rule := range c.Rules {
			p.add(rule)
		}
	}
	return p
}

func (p *packets) add(rule iptables.Rule) {
	for _, c := range rule.Conds {
		switch {
		case c.Field == iptables.Mark:
			p.marks |= c.Num
		case c.Field == iptables.ConnMark:
			p.connMarks |= c.Num
		case rule.Action.Verb != iptables.Redirect || c.Not:
		case c.Field == iptables.Protocol && c.Num == iptables.UDP:
			p.udp = true
		case c.Field == iptables.InIface:
			p.anywhere = true
		}
	}
}

// surroundings are the addresses and devices of a namespace. known is false if they could not be read, or are too many.
type surroundings struct {
	known   bool
	devices map[uint32]string // names by index
	local   []netip.Prefix    // whose packets are delivered in the namespace
}

// pattern is a part of an address, or of a device's name, that a rule asks for: bits of value where mask has them. Both are as long as an address or
// the longest name.
type pattern struct{ value, mask []byte }

// patternAt returns the pattern for data at an offset of an address of so many bytes. mask may be nil, which means all of data.
func patternAt(size, offset int, data, mask []byte) (p pattern, ok bool) {
	if offset < 0 || len(data) == 0 || offset+len(data) > size || mask != nil && len(mask) != len(data) {
		return p, false
	}
	p = pattern{value: make([]byte, size), mask: make([]byte, size)}
	copy(p.value[offset:], data)
	if mask == nil {
		mask = bytes.Repeat([]byte{0xff}, len(data))
	}
	copy(p.mask[offset:], mask)
	return p, true
}

// loopback reports whether all addresses that fit are of 127.0.0.0/8, or ::1.
func (p pattern) loopback() bool {
	if len(p.value) == 4 {
		return p.mask[0] == 0xff && p.value[0] == 127
	}
	return bytes.Count(p.mask, []byte{0xff}) == len(p.mask) && netip.AddrFrom16([16]byte(p.value)) == netip.IPv6Loopback()
}

// meets reports whether a prefix has an address that the pattern fits.
func (p pattern) meets(prefix netip.Prefix) bool {
	address := prefix.Addr().AsSlice()
	if len(address) != len(p.value) {
		return false
	}
	bits := prefix.Bits()
	for i := range address {
		left := min(max(bits-8*i, 0), 8)
		mask := p.mask[i] & (0xff << (8 - left))
		if (address[i]^p.value[i])&mask != 0 {
			return false
		}
	}
	return true
}

// isOf reports whether a device has a name that the pattern fits (ifname_compare).
func (p pattern) isOf(_ uint32, device string) bool {
	name := append([]byte(device), make([]byte, longestName)...)
	for i := range p.mask {
		if (name[i]^p.value[i])&p.mask[i] != 0 {
			return false
		}
	}
	return true
}

// hasAddress reports whether an address of the namespace fits.
func (s surroundings) hasAddress(p pattern) bool { return slices.ContainsFunc(s.local, p.meets) }

// hasDevice reports whether a device's name fits.
func (s surroundings) hasDevice(fits func(index uint32, name string) bool) bool {
	for index, name := range s.devices {
		if fits(index, name) {
			return true
		}
	}
	return false
}

// passesProtocol reports whether packets of ours may pass a condition on their protocol.
func (p packets) passesProtocol(protocol byte, not bool) bool {
	switch protocol {
	case unix.IPPROTO_TCP:
		return !not || p.udp
	case unix.IPPROTO_UDP:
		return not || p.udp
	}
	return not
}
