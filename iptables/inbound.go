package iptables

import "slices"

// inbound returns the chains for packets that reach the pod in REDIRECT mode.
func inbound(s Spec, d *declared) []Chain {
	r := &rules{}
	if len(s.RerouteInterfaces)+len(s.Aliases) > 0 || s.Mode == ModeRedirect && s.capturesInbound() {
		r.openConnections()
	}
	for _, a := range s.Aliases {
		r.add("a port of the proxy that serves now", redirectTo(a.To), tcp(), port(a.From), num(DstType, Local))
	}
	reroute(s, d, r)
	if s.Mode == ModeRedirect && s.capturesInbound() {
		// During a change of mode, this chain and TPROXY's exist at the same time, and only one of them may decide. With both, a client that
		// uses a port again would have to wait until the old connection's TIME_WAIT (a minute) is over. The mark alone proves nothing: a
		// chain of somebody else may set it at ingress. The proxy's socket must have the packet, too.
		r.add("diverted already", direct(), tcp(), marked(markDiverted), num(Transparent, TransparentSocket))
		r.excludeInterfaces(iif, s.ExcludeInterfaces)
		r.add("the proxy's tunnel port", direct(), tcp(), port(s.TunnelPort))
		ownPorts(s, d, r)
		excludeSources(s, d, r, SrcAddr)
		captured := capturedInbound(s, d, r, DstPort)
		r.add("inbound traffic goes to the proxy", redirectTo(s.InboundPort), append(slices.Clip(captured), s.listening()...)...)
		if s.IncludeInboundPorts.Listening {
			// The connection is refused here and now: if it went on, it would meet an application that has begun to listen meanwhile.
			r.add("nobody listens", redirectTo(refusedPort), append(slices.Clip(captured), num(DstType, Local))...)
		}
	}
	lost := lost(s, chainLostIn, inLo(), *r)
	return slices.Concat(chain(chainInbound, NAT, Prerouting, natPriority, *r), reused(chainReusedIn, Prerouting, inLo(), lost), lost)
}

// reroute treats what comes from virtual machines behind the pod as outbound traffic. It first adds the redirects of all interfaces,
// then the exemption of all from inbound capture.
func reroute(s Spec, d *declared, r *rules) {
	for _, name := range s.RerouteInterfaces {
		if s.RerouteDNS {
			lookups(s, r, "lookups of virtual machines go to the proxy's resolver", iif(name))
		}
		includeCIDRs(s, d, r, "traffic of virtual machines behind the pod is outbound", iif(name))
	}
	for _, name := range s.RerouteInterfaces {
		r.add("traffic of virtual machines behind the pod is not inbound", direct(), iif(name))
	}
}

// ownPorts leaves the proxy's own ports alone: it listens there, and is no application.
func ownPorts(s Spec, d *declared, r *rules) {
	if s.IncludeInboundPorts.Listening {
		r.add("the proxy's own ports", direct(), tcp(), inSet(DstPort, d.ports(setOwnPorts, s.ownPorts(), nil)))
	}
}

// capturedInbound returns the conditions of inbound packets that go to the proxy, by the client's packets' destination port or the answers' source port. It
// leaves excluded ports alone.
func capturedInbound(s Spec, d *declared, r *rules, port Field) []Cond {
	if !s.IncludeInboundPorts.All {
		return []Cond{tcp(), inSet(port, d.ports(setIncludeIn, s.IncludeInboundPorts.List, s.Ranges.IncludeInbound))}
	}
	if set := d.ports(setExcludeIn, s.ExcludeInboundPorts, s.Ranges.ExcludeInbound); set != "" {
		r.add("excluded inbound ports", direct(), tcp(), inSet(port, set))
	}
	return []Cond{tcp()}
}

// excludeSources leaves connections of excluded clients alone: the client's packets by their source, the answers by their destination.
func excludeSources(s Spec, d *declared, r *rules, client Field, more ...Cond) {
	for _, set := range d.prefixes(setSources4, setSources6, s.ExcludeSources) {
		r.add("excluded sources", direct(), append(slices.Clip(more), family(set.Prefixes[0]), inSet(client, set.Name), tcp())...)
	}
}
