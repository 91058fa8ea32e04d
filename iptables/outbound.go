package iptables

import (
	"net/netip"
	"slices"
)

// outbound returns the chains for packets that the pod sends.
func outbound(s Spec, d *declared) []Chain {
	r := &rules{}
	if s.DNS == DNSOff {
		r.add("only TCP is redirected", direct(), not(tcp()))
	}
	r.openConnections()
	validation(s, r)
	r.excludeInterfaces(oif, s.ExcludeInterfaces)
	for _, owner := range s.owners() {
		for _, listener := range []uint16{s.OutboundPort, s.InboundPort} {
			r.add("a proxy that dials its own listener would do so for ever", redirectTo(refusedPort), outLo(), tcp(), port(listener), owner)
		}
	}
	excludePorts(s, d, r)
	for _, p := range passthrough() {
		r.add("the proxy handing inbound traffic to the application", direct(), outLo(), family(p), addr(SrcAddr, p))
	}
	if s.divertsInbound() {
		r.add(commentInName, direct(), outLo(), tcp(), marked(markDiverted))
	}
	istioValidation(s, r)
	for _, owner := range s.owners() {
		self(s, r, owner)
	}
	excludeUsers(s, r)
	r.ownerGroups(s.OwnerGroups)
	lookups(s, r, "lookups go to the proxy's resolver")
	for _, lo := range s.loopbacks() {
		r.add("the pod's own loopback address stays direct", direct(), family(lo), addr(DstAddr, lo))
	}
	for _, set := range d.prefixes(setExclude4, setExclude6, s.ExcludeCIDRs) {
		r.add("excluded destinations", direct(), family(set.Prefixes[0]), inSet(DstAddr, set.Name))
	}
	if set := d.ports(setIncludeOut, s.IncludeOutboundPorts, s.Ranges.IncludeOutbound); set != "" {
		r.add("included outbound ports go to the proxy", redirectTo(s.OutboundPort), tcp(), inSet(DstPort, set))
	}
	includeCIDRs(s, d, r, "included destinations go to the proxy")
	lost := lost(s, chainLostOut, outLo(), *r)
	if !s.divertsInbound() { // else the chain that marks packets asks it
		lost = append(reused(chainReusedOut, Output, outLo(), lost), lost...)
	}
	return slices.Concat(leaving(s, *r), lost)
}

// leaving returns the chain of outbound rules, and the chain that decides about connections that leave the pod: the same rules without those for
// packets on lo, of which there are many.
func leaving(s Spec, all rules) []Chain {
	away := slices.DeleteFunc(slices.Clone(all), func(r Rule) bool {
		return r.has(not(opening())) || r.has(not(tcp())) || r.has(outLo()) || toLoopback(s, r)
	})
	if len(away.redirectPorts()) == 0 {
		return chain(chainOutbound, NAT, Output, natPriority, all)
	}
	leaves := Rule{Conds: []Cond{not(outLo())}, Action: leaveTo(chainAway), Comment: "connections that leave the pod"}
	i := slices.IndexFunc(all, func(r Rule) bool { return r.has(not(opening())) }) + 1
	return append(chain(chainOutbound, NAT, Output, natPriority, slices.Insert(slices.Clone(all), i, leaves)), chain(chainAway, NAT, "", natPriority, away)...)
}

func excludePorts(s Spec, d *declared, r *rules) {
	set := d.ports(setExcludeOut, s.ExcludeOutboundPorts, s.Ranges.ExcludeOutbound)
	if set == "" {
		return
	}
	r.add("excluded outbound ports", direct(), tcp(), inSet(DstPort, set))
	if s.DNS != DNSOff {
		r.add("excluded outbound ports", direct(), udp(), inSet(DstPort, set))
	}
}

// self adds the rules for traffic inside the pod, and exempts the proxy's own traffic.
func self(s Spec, r *rules, owner Cond) {
	// With DNS capture, the next two rules leave out lookups over lo, so that later rules decide. Exception: TCP lookups of the proxy's group
	// meet the first.
	dns := s.DNS != DNSOff
	for _, lo := range s.loopbacks() {
		conds := []Cond{outLo(), family(lo), not(addr(DstAddr, lo)), tcp(), not(port(s.TunnelPort))}
		if dns && owner.Field == OwnerUID && s.TunnelPort != dnsPort { // a condition that is there twice is there once when it is read back
			conds = append(conds, not(port(dnsPort)))
		}
		r.add("the proxy reaching its own pod passes the inbound listener", redirectTo(s.InboundPort), append(conds, owner)...)
	}
	const comment = "the application reaching itself stays direct"
	switch {
	case includesLoopback(s.IncludeCIDRs):
	case dns:
		r.add(comment, direct(), outLo(), tcp(), not(port(dnsPort)), not(owner))
	default:
		r.add(comment, direct(), outLo(), not(owner))
	}
	r.add("the proxy's own traffic", direct(), owner)
}

// excludeUsers leaves alone what excluded users send. It follows the rules for the proxy, which may be among them.
func excludeUsers(s Spec, r *rules) {
	const comment = "excluded users"
	for _, u := range s.ExcludeUsers {
		if u.Port == 0 {
			r.add(comment, direct(), u.cond())
			continue
		}
		r.add(comment, direct(), tcp(), port(u.Port), u.cond())
		if s.DNS != DNSOff && u.Port == dnsPort {
			r.add(comment, direct(), udp(), port(u.Port), u.cond())
		}
	}
}

func (r *rules) ownerGroups(g Groups) {
	if g.All {
		for _, gid := range g.Exclude {
			r.add("excluded owner groups", direct(), num(OwnerGID, gid))
		}
		return
	}
	var none []Cond
	for _, gid := range g.List {
		none = append(none, not(num(OwnerGID, gid)))
	}
	r.add("groups that are not included", direct(), none...)
}

// lookups redirects DNS to the proxy's resolver: all, or only what goes to the resolvers of the pod.
func lookups(s Spec, r *rules, comment string, from ...Cond) {
	for _, protocol := range []Cond{tcp(), udp()} {
		switch s.DNS {
		case DNSAll:
			r.add(comment, redirectTo(resolverPort), append(slices.Clip(from), protocol, port(dnsPort))...)
		case DNSResolvConf:
			for _, p := range s.resolvers() {
				r.add(comment, redirectTo(resolverPort), append(slices.Clip(from), family(p), addr(DstAddr, p), protocol, port(dnsPort))...)
			}
		case DNSOff:
		}
	}
}

func includeCIDRs(s Spec, d *declared, r *rules, comment string, from ...Cond) {
	from = slices.Clip(from)
	if s.IncludeCIDRs.All {
		r.add(comment, redirectTo(s.OutboundPort), append(from, tcp())...)
		return
	}
	for _, set := range d.prefixes(setInclude4, setInclude6, s.IncludeCIDRs.List) {
		r.add(comment, redirectTo(s.OutboundPort), append(from, family(set.Prefixes[0]), inSet(DstAddr, set.Name), tcp())...)
	}
}

// includesLoopback is Istio's test for applications whose loopback traffic is to be redirected.
func includesLoopback(c CIDRs) bool {
	return slices.ContainsFunc(c.List, func(p netip.Prefix) bool { return p.Addr().IsLoopback() })
}
