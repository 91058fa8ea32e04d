package iptables

import (
	"fmt"
	"net/netip"
)

// Priority puts our nat chains before those of others at the customary -100: the first chain that binds a connection wins.
const Priority = -105

// Addresses with a meaning of their own in Istio's data path: the source that the proxy binds when it hands inbound
// traffic to the application, and the loopback address that only the pod itself can reach.
var (
	passthrough4 = netip.MustParsePrefix("127.0.0.6/32")
	passthrough6 = netip.MustParsePrefix("::6/128")
	loopback4    = netip.MustParsePrefix("127.0.0.1/32")
	loopback6    = netip.MustParsePrefix("::1/128")
)

// Names of our sets.
const (
	setExclude4      = "exclude-cidr4"
	setExclude6      = "exclude-cidr6"
	setInclude4      = "include-cidr4"
	setInclude6      = "include-cidr6"
	setExcludeOut    = "exclude-outbound-ports"
	setIncludeOut    = "include-outbound-ports"
	setExcludeIn     = "exclude-inbound-ports"
	setIncludeIn     = "include-inbound-ports"
	chainOutbound    = "outbound"
	chainInbound     = "inbound"
	commentNotTCP    = "only TCP is redirected"
	commentLoopback  = "the pod's own loopback address stays direct"
	commentExclude   = "excluded destinations"
	commentInclude   = "included destinations go to the proxy"
	commentAppToSelf = "the application reaching itself stays direct"
)

// Rules computes what a pod's namespace must hold for spec. Both families are always there, whatever addresses the pod
// has now: it may get one later. The order of the rules is the order of decisions of Istio's own rule set.
func Rules(spec Spec) (Ruleset, error) {
	if err := spec.Validate(); err != nil {
		return Ruleset{}, fmt.Errorf("compute rules: %w", err)
	}
	b := builder{spec: spec}
	b.outbound()
	b.inbound()
	return Ruleset{Sets: sorted(b.sets), Chains: b.chains, Loopback: []netip.Prefix{passthrough6}}, nil
}

// builder gathers the sets that its rules mention.
type builder struct {
	spec   Spec
	sets   []Set
	chains []Chain
}

func (b *builder) outbound() {
	var rules []Rule
	add := func(comment string, action Action, conds ...Cond) {
		rules = append(rules, Rule{Conds: conds, Action: action, Comment: comment})
	}
	s := b.spec
	add(commentNotTCP, leave(), not(tcp()))
	if set := b.portSet(setExcludeOut, s.ExcludeOutboundPorts); set != "" {
		add("excluded outbound ports", leave(), tcp(), inSet(DstPort, set))
	}
	for _, p := range []netip.Prefix{passthrough4, passthrough6} {
		add("the proxy handing inbound traffic to the application", leave(), oif("lo"), family(p), addr(SrcAddr, p))
	}
	for _, owner := range []Cond{num(OwnerUID, s.ProxyUID), num(OwnerGID, s.ProxyGID)} {
		for _, lo := range []netip.Prefix{loopback4, loopback6} {
			add("the proxy reaching its own pod passes the inbound listener", to(s.InboundPort),
				oif("lo"), family(lo), not(addr(DstAddr, lo)), tcp(), not(port(s.TunnelPort)), owner)
		}
		if !includesLoopback(s.IncludeCIDRs) {
			add(commentAppToSelf, leave(), oif("lo"), not(owner))
		}
		add("the proxy's own traffic", leave(), owner)
	}
	for _, lo := range []netip.Prefix{loopback4, loopback6} {
		add(commentLoopback, leave(), family(lo), addr(DstAddr, lo))
	}
	for _, set := range b.prefixSets(setExclude4, setExclude6, s.ExcludeCIDRs) {
		add(commentExclude, leave(), set.family(), inSet(DstAddr, set.Name))
	}
	if set := b.portSet(setIncludeOut, s.IncludeOutboundPorts); set != "" {
		add("included outbound ports go to the proxy", to(s.OutboundPort), tcp(), inSet(DstPort, set))
	}
	if s.IncludeCIDRs.All {
		add(commentInclude, to(s.OutboundPort), tcp())
	} else {
		for _, set := range b.prefixSets(setInclude4, setInclude6, s.IncludeCIDRs.List) {
			add(commentInclude, to(s.OutboundPort), set.family(), inSet(DstAddr, set.Name), tcp())
		}
	}
	b.chains = append(b.chains, Chain{Name: chainOutbound, Type: NAT, Hook: Output, Priority: Priority, Rules: rules})
}

func (b *builder) inbound() {
	s := b.spec
	if !s.IncludeInboundPorts.All && len(s.IncludeInboundPorts.List) == 0 {
		return
	}
	rules := []Rule{
		{Conds: []Cond{not(tcp())}, Action: leave(), Comment: commentNotTCP},
		{Conds: []Cond{tcp(), port(s.TunnelPort)}, Action: leave(), Comment: "the proxy's tunnel port"},
	}
	if s.IncludeInboundPorts.All {
		if set := b.portSet(setExcludeIn, s.ExcludeInboundPorts); set != "" {
			rules = append(rules, Rule{
				Conds: []Cond{tcp(), inSet(DstPort, set)}, Action: leave(), Comment: "excluded inbound ports",
			})
		}
		rules = append(rules, Rule{Conds: []Cond{tcp()}, Action: to(s.InboundPort), Comment: "inbound traffic goes to the proxy"})
	} else {
		set := b.portSet(setIncludeIn, s.IncludeInboundPorts.List)
		rules = append(rules, Rule{
			Conds: []Cond{tcp(), inSet(DstPort, set)}, Action: to(s.InboundPort), Comment: "included inbound ports go to the proxy",
		})
	}
	b.chains = append(b.chains, Chain{Name: chainInbound, Type: NAT, Hook: Prerouting, Priority: Priority, Rules: rules})
}

// portSet declares a set and gives its name, or "" where there is nothing to put into it.
func (b *builder) portSet(name string, ports []uint16) string {
	if len(ports) == 0 {
		return ""
	}
	b.sets = append(b.sets, Set{Name: name, Kind: PortSet, Ports: canonicalPorts(ports)})
	return name
}

// prefixSets declares a set for each family that has prefixes.
func (b *builder) prefixSets(name4, name6 string, prefixes []netip.Prefix) []Set {
	var out []Set
	v4, v6 := splitFamilies(prefixes)
	if len(v4) > 0 {
		out = append(out, Set{Name: name4, Kind: IPv4Set, Prefixes: canonicalPrefixes(v4)})
	}
	if len(v6) > 0 {
		out = append(out, Set{Name: name6, Kind: IPv6Set, Prefixes: canonicalPrefixes(v6)})
	}
	b.sets = append(b.sets, out...)
	return out
}

// includesLoopback is Istio's test for applications that want their loopback traffic redirected.
func includesLoopback(c CIDRs) bool {
	for _, p := range c.List {
		if p.Addr().IsLoopback() {
			return true
		}
	}
	return false
}

// LoopbackAddrs are all the addresses that any Ruleset may add to lo.
func LoopbackAddrs() []netip.Prefix { return []netip.Prefix{passthrough6} }
