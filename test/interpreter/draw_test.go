package interpreter

import (
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"testing"

	"istio-pod-network-controller/iptables"
)

// firstSeed is what tests draw from, unless RULES_SEED names another seed, or "new".
const firstSeed = 20261124

func seedOf(t *testing.T) uint64 {
	t.Helper()
	seed := uint64(firstSeed)
	switch env := os.Getenv("RULES_SEED"); env {
	case "":
	case "new":
		seed = rand.Uint64() //nolint:gosec // any number will do
	default:
		var err error
		if seed, err = strconv.ParseUint(env, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("RULES_SEED=%d makes this again", seed)
	return seed
}

// draw draws specs, and packets at their boundaries.
type draw struct{ *rand.Rand }

func newDraw(seed, stream uint64) draw {
	return draw{rand.New(rand.NewPCG(seed, stream))} //nolint:gosec // a test wants repeatable numbers
}

// one returns one of a list.
func one[T any](d draw, list ...T) T { return list[d.IntN(len(list))] }

func (d draw) chance(percent int) bool { return d.IntN(100) < percent }

// some returns up to most of what f draws.
func some[T any](d draw, most int, f func() T) (out []T) {
	for range d.IntN(most + 1) {
		out = append(out, f())
	}
	return out
}

func (d draw) spec() iptables.Spec {
	s := iptables.DefaultSpec()
	s.Mode = one(d, iptables.ModeRedirect, iptables.ModeTProxy)
	if d.chance(30) {
		s.OutboundPort, s.InboundPort, s.TunnelPort = 16001, 16006, one[uint16](d, 16008, 53)
	}
	s.ProxyUID, s.ProxyGID = one[uint32](d, 1337, 1337, 0, 2000), one[uint32](d, 1337, 3000)
	if s.ProxyUID != 0 && d.chance(20) {
		s.ProxyGID = 0
	}
	if d.chance(60) {
		s.IncludeCIDRs = iptables.CIDRs{List: some(d, 4, d.prefix)}
	}
	if d.chance(60) {
		s.ExcludeCIDRs = some(d, 4, d.prefix)
	}
	s.IncludeOutboundPorts, s.ExcludeOutboundPorts = d.ports(), d.ports()
	s.IncludeInboundPorts.All, s.IncludeInboundPorts.Listening, s.ExcludeInboundPorts = d.chance(60), d.chance(30), d.ports()
	if !s.IncludeInboundPorts.All {
		s.IncludeInboundPorts.List = d.ports()
	}
	switch d.IntN(4) {
	case 0:
		s.OwnerGroups.Exclude = some(d, 3, d.id)
	case 1:
		s.OwnerGroups = iptables.Groups{List: some(d, 3, d.id)}
	}
	if d.chance(40) {
		s.LoopbackCIDR = netip.MustParsePrefix(one(d, "127.0.0.0/8", "127.0.0.0/30", "127.0.0.1/31"))
	}
	if d.chance(30) {
		s.ExcludeInterfaces = some(d, 2, func() string { return one(d, "net1", "net2", "lo", "eth0") })
	}
	if d.chance(30) {
		s.RerouteInterfaces = some(d, 2, func() string { return one(d, "net1", "net2") })
	}
	if s.DNS = one(d, iptables.DNSOff, iptables.DNSAll, iptables.DNSResolvConf); s.DNS == iptables.DNSResolvConf {
		s.Resolvers = append(some(d, 2, d.addr), d.addr())
	}
	if d.chance(30) {
		s.Ranges = iptables.Ranges{IncludeInbound: some(d, 2, d.portRange), ExcludeInbound: some(d, 2, d.portRange), IncludeOutbound: some(d, 2, d.portRange), ExcludeOutbound: some(d, 2, d.portRange)}
	}
	if d.chance(30) {
		s.ExcludeSources = some(d, 3, d.prefix)
	}
	if d.chance(30) {
		s.ExcludeUsers = some(d, 2, d.users)
	}
	if d.chance(20) {
		const public = 15399 // it is captured by nothing else
		s.Aliases, s.ExcludeInboundPorts = []iptables.PortAlias{{From: public, To: 15320}}, append(s.ExcludeInboundPorts, public)
	}
	s.RerouteDNS, s.DropInvalid, s.DirectIPv6 = d.chance(50), d.chance(40), d.chance(15)
	return s
}

func (d draw) portRange() iptables.PortRange {
	first := d.port()
	return iptables.PortRange{First: first, Last: max(first, one(d, d.port(), min(first, 65000)+uint16(d.UintN(10))))}
}

func (d draw) users() iptables.Users {
	first := d.id()
	return iptables.Users{First: first, Last: max(first, one(d, first, d.id())), Port: one[uint16](d, 0, 0, 53, 443)}
}

func (d draw) ports() []uint16 { return some(d, one(d, 0, 2, 5, 40), d.port) }

func (d draw) port() uint16 {
	return one(d, 1, 2, 22, 53, 80, 443, 8080, 8081, 15001, 15002, 15005, 15006, 15008, 15020, 15053, 65535, uint16(1+d.UintN(65535)))
}

func (d draw) id() uint32 { return one[uint32](d, 0, 1, 1000, 1001, 1337, 2000, 3000, 1<<32-2) }

func (d draw) prefix() netip.Prefix {
	if d.chance(60) {
		return netip.MustParsePrefix(one(d, "0.0.0.0/0", "0.0.0.0/1", "10.0.0.0/8", "10.96.0.0/12", "10.96.5.0/24", "10.96.4.0/24", "93.184.216.34/32",
			"127.0.0.0/8", "127.1.2.3/32", "10.244.1.5/32", "::/0", "fd00::/8", "fd00:10:96::/112", "2001:db8::34/128", "::1/128", "2001:db8::/63"))
	}
	a := d.addr()
	return netip.PrefixFrom(a, 1+d.IntN(a.BitLen()))
}

func (d draw) addr() netip.Addr {
	if d.chance(50) {
		return netip.AddrFrom4([4]byte{10, 96, byte(d.UintN(8)), byte(d.UintN(256))})
	}
	return netip.AddrFrom16([16]byte{0xfd, 0, 0, 0x10, 0, 0x96, 14: byte(d.UintN(4)), 15: byte(d.UintN(256))})
}

// Addresses of the pod. Those of loopback are its own, too.
const (
	pod4 = "10.244.1.5"
	pod6 = "fd00:10:244:1::5"
)

// edges are the values at which a Spec may decide otherwise.
type edges struct {
	ports []uint16
	addrs []netip.Addr
	ids   []uint32
	proxy []uint16 // ports that connections are redirected to
}

func edgesOf(s iptables.Spec) edges {
	e := edges{
		ports: []uint16{s.OutboundPort, s.InboundPort, s.TunnelPort, 53, 15053, 15005, 15002, 80},
		ids:   append(slices.Concat(s.OwnerGroups.List, s.OwnerGroups.Exclude), 0, 1000, s.ProxyUID, s.ProxyGID, s.ProxyUID, s.ProxyGID),
		addrs: slices.Clone(s.Resolvers),
		proxy: []uint16{s.OutboundPort, s.InboundPort, resolver},
	}
	e.ports = slices.Concat(e.ports, s.IncludeInboundPorts.List, s.ExcludeInboundPorts, s.IncludeOutboundPorts, s.ExcludeOutboundPorts)
	for _, r := range slices.Concat(s.Ranges.IncludeInbound, s.Ranges.ExcludeInbound, s.Ranges.IncludeOutbound, s.Ranges.ExcludeOutbound) {
		e.ports = append(e.ports, r.First, r.Last)
	}
	for _, u := range s.ExcludeUsers {
		e.ids, e.ports = append(e.ids, u.First, u.Last), append(e.ports, max(u.Port, 1))
	}
	for _, a := range s.Aliases {
		e.ports, e.proxy = append(e.ports, a.From, a.To), append(e.proxy, a.To)
	}
	for _, p := range e.ports {
		e.ports = append(e.ports, max(p, 2)-1, min(p, 65534)+1)
	}
	for _, id := range e.ids {
		e.ids = append(e.ids, max(id, 1)-1, min(id, 1<<32-3)+1)
	}
	for _, p := range append(slices.Concat(s.IncludeCIDRs.List, s.ExcludeCIDRs, s.ExcludeSources), s.LoopbackCIDR) {
		first, last := p.Masked().Addr(), lastOf(p)
		e.addrs = append(e.addrs, first, last, first.Prev(), last.Next())
	}
	for _, a := range []string{"127.0.0.1", "127.0.0.2", "127.0.0.5", "127.0.0.6", "127.0.0.7", "::1", "::6", pod4, pod6, "93.184.216.34", "2001:db8::34"} {
		e.addrs = append(e.addrs, netip.MustParseAddr(a))
	}
	e.addrs = slices.DeleteFunc(e.addrs, func(a netip.Addr) bool {
		return !a.IsValid() || a.IsUnspecified() || a.IsMulticast() || slices.Contains([]string{"255.255.255.255", "127.255.255.255", "127.0.0.0", "::2"}, a.String())
	})
	return e
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	last, _ := netip.AddrFromSlice(b)
	return last
}

// isOwn reports whether an address is the pod's.
func isOwn(a netip.Addr) bool {
	return a.IsLoopback() || slices.Contains([]string{pod4, pod6, "::6"}, a.String())
}

// of returns one of a list that satisfies a condition, of which there must be some.
func of[T any](d draw, list []T, is func(T) bool) T {
	return one(d, slices.DeleteFunc(slices.Clone(list), func(v T) bool { return !is(v) })...)
}

// ends draws two addresses of one family, one of which is the pod's own, and the interface between them.
func (d draw) ends(e edges, outbound bool) (src, dst netip.Addr, by Interface) {
	first, local := one(d, e.addrs...), d.chance(40)
	inside := func(a netip.Addr) bool {
		return a.Is4() == first.Is4() && (!local && !a.IsLoopback() && a.String() != "::6" || local)
	}
	own := func(a netip.Addr) bool { return inside(a) && isOwn(a) }
	foreign := func(a netip.Addr) bool { return inside(a) && !isOwn(a) }
	by = one(d, Interface{"eth0", 2}, Interface{"eth0", 2}, Interface{"net1", 3}, Interface{"net2", 4})
	switch {
	case local:
		dst, by = of(d, e.addrs, own), Loopback()
		if src = of(d, e.addrs, own); d.chance(20) {
			src = of(d, e.addrs, foreign) // in a client's name
		}
	case outbound:
		src, dst = of(d, e.addrs, own), of(d, e.addrs, foreign)
	default:
		src, dst = of(d, e.addrs, foreign), of(d, e.addrs, own)
		if d.chance(20) {
			dst = of(d, e.addrs, foreign) // forwarded
		}
	}
	return src, dst, by
}

// packet draws a packet at the edges of a Spec.
func (d draw) packet(e edges, hook iptables.Hook) Packet {
	p := Packet{Protocol: one[uint32](d, iptables.TCP, iptables.TCP, iptables.TCP, iptables.UDP), Diverts: d.chance(80)}
	src, dst, by := d.ends(e, hook == iptables.Output)
	sport, dport := one(d, 40000, one(d, e.ports...)), one(d, e.ports...)
	if d.chance(10) {
		dport = 53 // lookups have rules of their own
	}
	proves := func(a netip.Addr) bool { return isPassthrough(a) && a.Is4() == dst.Is4() }
	if by == Loopback() && slices.ContainsFunc(e.addrs, proves) && d.chance(15) { // a proof of the rules, or nearly
		dst = of(d, e.addrs, proves)
		src, dport = of(d, e.addrs, func(a netip.Addr) bool { return isOwn(a) && a.Is4() == dst.Is4() }), one[uint16](d, validationPort, istioPort)
	}
	p.Src, p.Dst = netip.AddrPortFrom(src, sport), netip.AddrPortFrom(dst, dport)
	if isOwn(src) {
		p.SrcType = iptables.Local
	}
	if isOwn(dst) {
		p.DstType = iptables.Local
	}
	if hook == iptables.Output {
		p.Out = by
		if d.chance(95) {
			p.Owner = &Owner{one(d, e.ids...), one(d, e.ids...)}
		}
	} else {
		p.In, p.Taker = by, one(d, NoSocket, PlainSocket, TransparentSocket)
	}
	p.Mark = one[uint32](d, 0, 0, 0, 1336, 1337, 1338, 1339)
	p.State = iptables.New
	if p.Protocol == iptables.TCP {
		p.Flags = syn
	}
	if p.Protocol == iptables.TCP && d.chance(50) {
		d.old(&p, e)
	}
	return p
}

// old makes a packet one of a connection that conntrack knows already, or one that is invalid.
func (d draw) old(p *Packet, e edges) {
	p.Flags = one[uint32](d, syn, syn|ack, ack, fin|ack, rst)
	p.State = one[uint32](d, iptables.New, iptables.New, iptables.Established, iptables.Established, iptables.Invalid, iptables.Untracked)
	if !p.isTracked() {
		return
	}
	p.ConnMark = one[uint32](d, 0, 0, 1337, 1338, 1336)
	if p.State == iptables.Established || d.chance(50) {
		p.Status = iptables.Confirmed | one[uint32](d, 0, 0, iptables.Translated)
		p.ReplySrcPort = one(d, p.Dst.Port(), one(d, e.proxy...))
	}
	p.Reply = p.State == iptables.Established && d.chance(50)
}
