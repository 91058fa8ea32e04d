package interpreter

import (
	"net/netip"
	"slices"

	"istio-pod-network-controller/iptables"
)

// The oracle says what must happen to a packet, from the tables of docs/redirection.md, one line after the other. It knows nothing of
// chains and rules.

// Flags of TCP.
const (
	fin = 0x01
	syn = 0x02
	rst = 0x04
	ack = 0x10
)

// Marks and ports that are part of the contract.
const (
	diverted       = 1337
	toOwnPod       = 1338
	refused        = 1
	resolver       = 15053
	validationPort = 15005
	istioPort      = 15002
)

type oracle struct{ iptables.Spec }

// output is the verdict about a packet that the pod sends.
func (o oracle) output(p Packet) Verdict {
	v := Verdict{Mark: p.Mark, ConnMark: p.ConnMark}
	if o.DirectIPv6 && isIPv6(p) {
		return v
	}
	v.Zone = o.zoneOut(p)
	if lost(p, o.outPorts()) && p.Out != Loopback() && o.redirectOut(p) != 0 {
		v.Dropped = true
		return v
	}
	if o.diverts() {
		o.markOut(p, &v)
	}
	p.Mark = v.Mark
	if !v.Dropped && p.meetsNAT() {
		v.Redirect = o.redirectOut(p)
	}
	return v
}

// prerouting is the verdict about a packet that reaches the pod.
func (o oracle) prerouting(p Packet) Verdict {
	v := Verdict{Mark: p.Mark, ConnMark: p.ConnMark}
	if o.DirectIPv6 && isIPv6(p) {
		return v
	}
	v.Zone = o.zoneIn(p)
	unmarked := p
	unmarked.Mark = 0
	if lost(p, o.inPorts()) && p.In != Loopback() && o.redirectIn(unmarked) != 0 {
		v.Dropped = true
		return v
	}
	o.divertIn(p, &v)
	p.Mark = v.Mark
	if !v.Dropped && p.meetsNAT() {
		v.Redirect = o.redirectIn(p)
	}
	return v
}

// input is the verdict about a packet that a socket of the pod may take, with rules that hold connections.
func (o oracle) input(p Packet) Verdict {
	v := Verdict{Mark: p.Mark, ConnMark: p.ConnMark}
	outbound := o.IncludeCIDRs.All || len(o.IncludeCIDRs.List)+len(o.IncludeOutboundPorts)+len(o.Ranges.IncludeOutbound)+len(o.RerouteInterfaces) > 0
	led := outbound && p.Dst.Port() == o.OutboundPort || o.capturesInbound() && p.Dst.Port() == o.InboundPort
	v.Dropped = led && opens(p) && p.Taker == NoSocket && (!o.DirectIPv6 || !isIPv6(p))
	return v
}

// lost reports whether a packet that opens a connection is taken for a part of an older one, which our rules do not redirect to ports, or for a
// part of none.
func lost(p Packet, ports []uint16) bool {
	redirected := p.Status&iptables.Translated != 0 && slices.Contains(ports, p.ReplySrcPort)
	return opens(p) && (!p.isTracked() || p.Status&iptables.Confirmed != 0 && !redirected)
}

// outPorts are the ports that connections of the pod are redirected to, unless they are on lo.
func (o oracle) outPorts() (ports []uint16) {
	if o.DNS != iptables.DNSOff {
		ports = append(ports, resolver)
	}
	if o.IncludeCIDRs.All || len(o.IncludeCIDRs.List)+len(o.IncludeOutboundPorts)+len(o.Ranges.IncludeOutbound) > 0 {
		ports = append(ports, o.OutboundPort)
	}
	return ports
}

// inPorts are the ports that connections to the pod are redirected to.
func (o oracle) inPorts() (ports []uint16) {
	if o.Mode == iptables.ModeRedirect && o.capturesInbound() {
		ports = append(ports, o.InboundPort)
	}
	for _, a := range o.Aliases {
		ports = append(ports, a.To)
	}
	if len(o.RerouteInterfaces) > 0 && (o.IncludeCIDRs.All || len(o.IncludeCIDRs.List) > 0) {
		ports = append(ports, o.OutboundPort)
	}
	if len(o.RerouteInterfaces) > 0 && o.RerouteDNS && o.DNS != iptables.DNSOff {
		ports = append(ports, resolver)
	}
	return ports
}

// redirectOut is the table of outbound traffic. 0 is direct.
func (o oracle) redirectOut(p Packet) uint16 {
	tcp, lo, port := p.Protocol == iptables.TCP, p.Out == Loopback(), p.Dst.Port()
	switch {
	case !tcp && o.DNS == iptables.DNSOff, tcp && !opens(p):
		return 0
	case lo && tcp && port == validationPort && isPassthrough(p.Dst.Addr()) && o.isProxy(p):
		return refused
	case lo && tcp && port == validationPort && isPassthrough(p.Dst.Addr()) && slices.Contains([]string{"127.0.0.1", "::1"}, p.Src.Addr().String()):
		return o.InboundPort
	case slices.Contains(o.ExcludeInterfaces, p.Out.Name):
		return 0
	case lo && tcp && (port == o.OutboundPort || port == o.InboundPort) && o.isProxy(p):
		return refused
	case isListed(port, o.ExcludeOutboundPorts, o.Ranges.ExcludeOutbound), lo && isPassthrough(p.Src.Addr()), o.diverts() && lo && tcp && p.Mark == diverted:
		return 0
	case lo && tcp && port == istioPort && isPassthrough(p.Dst.Addr()) && o.LoopbackCIDR.Contains(p.Dst.Addr()) && o.isProxy(p):
		return o.InboundPort
	}
	if to, decided := o.bySelf(p); decided {
		return to
	}
	return o.byDestination(p)
}

// bySelf is about the proxy's traffic, and about the application reaching itself: by user first, then by group.
func (o oracle) bySelf(p Packet) (port uint16, decided bool) {
	if p.Owner == nil {
		return 0, false
	}
	lo, tcp, dns := p.Out == Loopback(), p.Protocol == iptables.TCP, o.DNS != iptables.DNSOff
	lookup := p.Dst.Port() == 53
	includesLoopback := slices.ContainsFunc(o.IncludeCIDRs.List, func(c netip.Prefix) bool { return c.Addr().IsLoopback() })
	for _, id := range []struct {
		has, proxy uint32
		isUser     bool
	}{{p.Owner.UID, o.ProxyUID, true}, {p.Owner.GID, o.ProxyGID, false}} {
		switch {
		case id.proxy == 0:
		case id.has == id.proxy && lo && tcp && !o.isLoopback(p.Dst.Addr()) && p.Dst.Port() != o.TunnelPort && (!dns || !id.isUser || !lookup):
			return o.InboundPort, true
		case id.has == id.proxy:
			return 0, true
		case lo && !includesLoopback && (!dns || tcp && !lookup):
			return 0, true
		}
	}
	return 0, false
}

func (o oracle) byDestination(p Packet) uint16 {
	tcp, dst, port := p.Protocol == iptables.TCP, p.Dst.Addr(), p.Dst.Port()
	switch {
	case !o.ofRedirectedGroup(p), o.isExcludedUser(p):
		return 0
	case port == 53 && o.DNS != iptables.DNSOff && o.asksResolver(dst):
		return resolver
	case !tcp, o.isLoopback(dst), contains(o.ExcludeCIDRs, dst):
		return 0
	case isListed(port, o.IncludeOutboundPorts, o.Ranges.IncludeOutbound), o.IncludeCIDRs.All, contains(o.IncludeCIDRs.List, dst):
		return o.OutboundPort
	}
	return 0
}

// ofRedirectedGroup takes a packet without a socket for one of no group.
func (o oracle) ofRedirectedGroup(p Packet) bool {
	switch g := o.OwnerGroups; {
	case g.All:
		return p.Owner == nil || !slices.Contains(g.Exclude, p.Owner.GID)
	case len(g.List) == 0:
		return false
	default:
		return p.Owner == nil || slices.Contains(g.List, p.Owner.GID)
	}
}

func (o oracle) isExcludedUser(p Packet) bool {
	return p.Owner != nil && slices.ContainsFunc(o.ExcludeUsers, func(u iptables.Users) bool {
		return u.First <= p.Owner.UID && p.Owner.UID <= u.Last && (u.Port == 0 || u.Port == p.Dst.Port() && (p.Protocol == iptables.TCP || u.Port == 53))
	})
}

// redirectIn is the table of inbound traffic in REDIRECT mode, and of virtual machines in both. 0 is direct.
func (o oracle) redirectIn(p Packet) uint16 {
	tcp, port := p.Protocol == iptables.TCP, p.Dst.Port()
	switch {
	case tcp && !opens(p):
		return 0
	case tcp && p.DstType == iptables.Local && o.alias(port) != 0:
		return o.alias(port)
	case slices.Contains(o.RerouteInterfaces, p.In.Name):
		if o.RerouteDNS && port == 53 && o.asksResolver(p.Dst.Addr()) {
			return resolver
		}
		if tcp && (o.IncludeCIDRs.All || contains(o.IncludeCIDRs.List, p.Dst.Addr())) {
			return o.OutboundPort
		}
		return 0
	case !tcp, o.Mode != iptables.ModeRedirect, p.Mark == diverted && p.Taker == TransparentSocket, slices.Contains(o.ExcludeInterfaces, p.In.Name),
		port == o.TunnelPort, contains(o.ExcludeSources, p.Src.Addr()), !o.included(port):
		return 0
	case !o.IncludeInboundPorts.Listening, p.Taker != NoSocket && p.DstType == iptables.Local:
		return o.InboundPort
	case p.DstType == iptables.Local:
		return refused
	}
	return 0
}

// alias returns where a port of the pod leads, or 0.
func (o oracle) alias(port uint16) (to uint16) {
	for _, a := range o.Aliases {
		to |= map[bool]uint16{true: a.To}[a.From == port]
	}
	return to
}

// included reports whether an inbound port is to be captured.
func (o oracle) included(port uint16) bool {
	switch {
	case o.IncludeInboundPorts.Listening && slices.Contains([]uint16{o.OutboundPort, o.InboundPort, o.TunnelPort}, port):
		return false
	case o.IncludeInboundPorts.All:
		return !isListed(port, o.ExcludeInboundPorts, o.Ranges.ExcludeInbound)
	}
	return isListed(port, o.IncludeInboundPorts.List, o.Ranges.IncludeInbound)
}

func isListed(port uint16, list []uint16, ranges []iptables.PortRange) bool {
	return slices.Contains(list, port) || slices.ContainsFunc(ranges, func(r iptables.PortRange) bool { return r.First <= port && port <= r.Last })
}

func (o oracle) diverts() bool {
	return o.Mode == iptables.ModeTProxy && o.capturesInbound()
}

func (o oracle) capturesInbound() bool {
	return o.IncludeInboundPorts.All || len(o.IncludeInboundPorts.List)+len(o.Ranges.IncludeInbound) > 0
}

// divertIn is the table of inbound traffic in TPROXY mode, and of invalid packets in both.
func (o oracle) divertIn(p Packet, v *Verdict) {
	lo := p.In == Loopback()
	switch {
	case p.Protocol != iptables.TCP, slices.Contains(o.ExcludeInterfaces, p.In.Name):
	case o.DropInvalid && p.State == iptables.Invalid:
		v.Dropped = true
	case !o.diverts(), slices.Contains(o.RerouteInterfaces, p.In.Name):
	case lo && p.Mark == diverted:
		if p.isTracked() {
			v.ConnMark = diverted
		}
	case lo && isPassthrough(p.Src.Addr()), lo && p.Mark != toOwnPod, p.isTracked() && p.Reply && !opens(p), !lo && contains(o.ExcludeSources, p.Src.Addr()), !o.included(p.Dst.Port()):
	case p.State&(iptables.Established|iptables.Related) != 0 && !opens(p):
		v.Mark = diverted
	case !opens(p), o.IncludeInboundPorts.Listening && (p.Taker == NoSocket || p.DstType != iptables.Local), o.isLoopback(p.Dst.Addr()):
	case p.Diverts:
		v.TProxy, v.Mark = o.InboundPort, diverted
	default:
		v.Dropped = true
	}
}

// markOut is about what TPROXY routes back into the pod, and about answers to clients.
func (o oracle) markOut(p Packet, v *Verdict) {
	lo := p.Out == Loopback()
	switch {
	case p.Protocol != iptables.TCP, slices.Contains(o.ExcludeInterfaces, p.Out.Name), lo && p.Mark == diverted:
		return
	case lo && p.isTracked() && p.Reply && p.Status&iptables.Translated != 0 && !opens(p):
		return // nobody needs a mark of the answers to redirected connections
	case lo && o.isProxy(p) && p.SrcType != iptables.Local:
		v.Mark = diverted
		return
	case lo && o.isProxy(p) && !o.isLoopback(p.Dst.Addr()):
		v.Mark = toOwnPod
	}
	if p.isTracked() && p.ConnMark == diverted {
		v.Mark = diverted
		return
	}
	captured := isListed(p.Src.Port(), o.IncludeInboundPorts.List, o.Ranges.IncludeInbound)
	if o.IncludeInboundPorts.All {
		captured = !isListed(p.Src.Port(), o.ExcludeInboundPorts, o.Ranges.ExcludeInbound)
	}
	v.Dropped = p.Flags == syn|ack && !lo && captured && !contains(o.ExcludeSources, p.Dst.Addr()) && !o.isProxy(p) && !slices.Contains(o.RerouteInterfaces, p.Out.Name)
}

func (o oracle) zoneOut(p Packet) uint32 {
	switch {
	case o.DNS == iptables.DNSOff, p.Protocol != iptables.UDP:
		return 0
	case o.isProxy(p) && p.Dst.Port() == 53:
		return 1
	case !o.isProxy(p) && p.Dst.Port() == 53 && o.isExcludedUser(p):
		return 1
	case o.isProxy(p) && p.Src.Port() == resolver, p.Dst.Port() == 53 && o.asksResolver(p.Dst.Addr()):
		return 2
	}
	return 0
}

func (o oracle) zoneIn(p Packet) uint32 {
	if o.RerouteDNS && p.Protocol == iptables.UDP && slices.Contains(o.RerouteInterfaces, p.In.Name) && p.Dst.Port() == 53 && o.asksResolver(p.Dst.Addr()) {
		return 2
	}
	return 0
}

func (o oracle) isProxy(p Packet) bool {
	return p.Owner != nil && (o.ProxyUID != 0 && p.Owner.UID == o.ProxyUID || o.ProxyGID != 0 && p.Owner.GID == o.ProxyGID)
}

func (o oracle) isLoopback(a netip.Addr) bool {
	return o.LoopbackCIDR.Contains(a) || a == netip.IPv6Loopback()
}

func (o oracle) asksResolver(a netip.Addr) bool {
	return o.DNS == iptables.DNSAll || o.DNS == iptables.DNSResolvConf && slices.Contains(o.Resolvers, a)
}

func opens(p Packet) bool  { return p.Protocol == iptables.TCP && p.Flags == syn }
func isIPv6(p Packet) bool { return p.Dst.Addr().Is6() }

func isPassthrough(a netip.Addr) bool {
	return a == netip.MustParseAddr("127.0.0.6") || a == netip.MustParseAddr("::6")
}

func contains(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}
