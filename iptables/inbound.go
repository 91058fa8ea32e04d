package iptables

// inbound adds the rules for what reaches the pod in REDIRECT mode.
func (b *builder) inbound() {
	s, r := b.spec, &rules{}
	if len(s.RerouteInterfaces) > 0 || s.Mode == ModeRedirect && s.capturesInbound() {
		r.openConnections()
	}
	b.reroute(r)
	if s.Mode == ModeRedirect && s.capturesInbound() {
		// During a change of mode, this chain and TPROXY's exist at the same time, and only one of them may decide. With both, a client that
		// uses a port again would have to wait until the old connection's TIME_WAIT (a minute) is over.
		r.add("diverted already", direct(), tcp(), marked(markDiverted))
		r.excludeInterfaces(iif, s.ExcludeInterfaces)
		r.add("the proxy's tunnel port", direct(), tcp(), port(s.TunnelPort))
		const comment = "inbound traffic goes to the proxy"
		if s.IncludeInboundPorts.All {
			b.excludeInbound(r)
			r.add(comment, redirectTo(s.InboundPort), tcp())
		} else {
			r.add(comment, redirectTo(s.InboundPort), tcp(), inSet(DstPort, b.portSet(setIncludeIn, s.IncludeInboundPorts.List)))
		}
	}
	b.chain(chainInbound, NAT, Prerouting, natPriority, r)
	b.reused(chainReusedIn, Prerouting, iif("lo"), *r)
}

// reroute treats what comes from virtual machines behind the pod as outbound traffic. It first adds the redirects of all interfaces,
// then the exemption of all from inbound capture.
func (b *builder) reroute(r *rules) {
	s := b.spec
	const comment = "traffic of virtual machines behind the pod is outbound"
	for _, name := range s.RerouteInterfaces {
		if s.IncludeCIDRs.All {
			r.add(comment, redirectTo(s.OutboundPort), iif(name), tcp())
			continue
		}
		for _, set := range b.prefixSets(setInclude4, setInclude6, s.IncludeCIDRs.List) {
			r.add(comment, redirectTo(s.OutboundPort), iif(name), set.family(), inSet(DstAddr, set.Name), tcp())
		}
	}
	for _, name := range s.RerouteInterfaces {
		r.add("traffic of virtual machines behind the pod is not inbound", direct(), iif(name))
	}
}

func (b *builder) excludeInbound(r *rules) {
	if set := b.portSet(setExcludeIn, b.spec.ExcludeInboundPorts); set != "" {
		r.add("excluded inbound ports", direct(), tcp(), inSet(DstPort, set))
	}
}
