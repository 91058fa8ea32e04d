package iptables

import "slices"

// zones returns the chains that separate them, if DNS is captured. What is asked upstream has a zone one way: no packet that reaches the pod needs
// a rule, and answers find their connection even if somebody translates it.
func zones(s Spec) []Chain {
	if s.DNS == DNSOff {
		return nil
	}
	resolvers := [][]Cond{{}} // one list of conditions for each, or one empty list for all
	if s.DNS != DNSAll {
		resolvers = nil
		for _, p := range s.resolvers() {
			resolvers = append(resolvers, []Cond{family(p), addr(DstAddr, p)})
		}
	}
	out, in := &rules{}, &rules{}
	for _, owner := range s.owners() {
		out.add("the proxy asking a resolver", oneWay(zoneUpstream), udp(), port(dnsPort), owner)
		out.add("the proxy answering the application", localZone(), udp(), num(SrcPort, resolverPort), owner)
	}
	for _, u := range s.ExcludeUsers {
		if u.Port == 0 || u.Port == dnsPort {
			// Otherwise a captured lookup from the same port would be taken for a part of this one, and go where it went.
			out.add("excluded users asking a resolver", oneWay(zoneUpstream), udp(), port(dnsPort), u.cond())
		}
	}
	for _, conds := range resolvers {
		out.add("the application asking", localZone(), append(conds, udp(), port(dnsPort))...)
	}
	if s.RerouteDNS { // others need no zone: their answers come from the resolver
		for _, name := range s.RerouteInterfaces {
			for _, conds := range resolvers {
				in.add("a virtual machine asking", localZone(), append(conds, iif(name), udp(), port(dnsPort))...)
			}
		}
	}
	lookups := &rules{}
	lookups.add("lookups, and nothing else", jump(chainLookups), udp())
	// Without its zone the kernel's answer that nobody listens is about no connection, and the application waits for seconds.
	lookups.add("that nobody answers lookups", localZone(), num(Family, IPv4), outLo(), proto(ICMP))
	lookups.add("that nobody answers lookups", localZone(), num(Family, IPv6), outLo(), proto(ICMPv6))
	return slices.Concat(chain(chainDNSOut, Filter, Output, rawPriority, *lookups), chain(chainLookups, Filter, "", rawPriority, *out),
		chain(chainDNSIn, Filter, Prerouting, rawPriority, *in))
}
