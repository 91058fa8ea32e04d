package iptables

import "slices"

// Zones of connection tracking separate two exchanges that may have the same addresses and ports: the proxy's with the real
// resolver, and the application's with the proxy (istio/istio#33469).
const (
	zoneUpstream = 1
	zoneLocal    = 2
)

// zones returns the chains that separate them, if DNS is captured.
func zones(s Spec) []Chain {
	if s.DNS == DNSOff {
		return nil
	}
	// One list of conditions for each resolver, or one empty list for all.
	resolvers := func(f Field) [][]Cond {
		if s.DNS == DNSAll {
			return [][]Cond{{}}
		}
		var out [][]Cond
		for _, p := range s.resolvers() {
			out = append(out, []Cond{family(p), addr(f, p)})
		}
		return out
	}
	out, in := &rules{}, &rules{}
	for _, owner := range s.owners() {
		out.add("the proxy asking a resolver", zone(zoneUpstream), udp(), port(dnsPort), owner)
		out.add("the proxy answering the application", zone(zoneLocal), udp(), num(SrcPort, resolverPort), owner)
	}
	for _, u := range s.ExcludeUsers {
		if u.Port == 0 || u.Port == dnsPort {
			// Otherwise a captured lookup from the same port would be taken for a part of this one, and go where it went.
			out.add("excluded users asking a resolver", zone(zoneUpstream), udp(), port(dnsPort), u.cond())
		}
	}
	for _, conds := range resolvers(DstAddr) {
		out.add("the application asking", zone(zoneLocal), append(conds, udp(), port(dnsPort))...)
	}
	// The answer comes by the same zone: from the proxy, or from the resolver that the virtual machine asks past the proxy.
	virtual := zone(zoneUpstream)
	if s.RerouteDNS {
		virtual = zone(zoneLocal)
	}
	for _, name := range s.RerouteInterfaces {
		for _, conds := range resolvers(DstAddr) {
			in.add("a virtual machine asking", virtual, append(conds, iif(name), udp(), port(dnsPort))...)
		}
	}
	for _, conds := range resolvers(SrcAddr) {
		in.add("a resolver answering the proxy", zone(zoneUpstream), append(conds, udp(), num(SrcPort, dnsPort))...)
	}
	lookups := &rules{}
	lookups.add("lookups, and nothing else", jump(chainLookups), udp())
	return slices.Concat(chain(chainDNSOut, Filter, Output, rawPriority, *lookups), chain(chainLookups, Filter, "", rawPriority, *out),
		chain(chainDNSIn, Filter, Prerouting, rawPriority, *in))
}
