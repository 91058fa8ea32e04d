package iptables

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Summary says in a few lines what the rules for the Spec do to ordinary traffic. Lines has all cases.
func (s Spec) Summary() []string {
	out := append(s.outboundSummary(), s.inboundSummary())
	if where := map[DNSMode]string{DNSAll: "any server", DNSResolvConf: "the pod's resolvers"}[s.DNS]; where != "" {
		out = append(out, fmt.Sprintf("lookups: tcp and udp to port %d of %s -> proxy's resolver, %d", dnsPort, where, resolverPort))
	}
	if s.DirectIPv6 {
		out = append(out, "IPv6: direct")
	}
	for _, u := range s.ExcludeUsers {
		out = append(out, fmt.Sprintf("outbound of user %s: direct", u))
	}
	for _, name := range s.ExcludeInterfaces {
		out = append(out, fmt.Sprintf("interface %s: direct", name))
	}
	for _, name := range s.RerouteInterfaces {
		out = append(out, fmt.Sprintf("interface %s: what comes in counts as outbound", name))
	}
	return append(out, s.ownerSummary())
}

func (s Spec) outboundSummary() []string {
	var out []string
	ports := ""
	if excluded := portSet("", s.ExcludeOutboundPorts, s.Ranges.ExcludeOutbound); len(excluded.elements()) > 0 {
		ports = ", any port but " + excluded.words()
	}
	to := "anywhere"
	if !s.IncludeCIDRs.All {
		to = prefixWords(s.IncludeCIDRs.List)
	}
	if len(s.ExcludeCIDRs) > 0 {
		to += " but " + prefixWords(s.ExcludeCIDRs)
	}
	if s.IncludeCIDRs.All || len(s.IncludeCIDRs.List) > 0 {
		out = append(out, fmt.Sprintf("outbound: %stcp to %s%s -> proxy's %d", s.groupWords(), to, ports, s.OutboundPort))
	}
	if included := portWords(s.IncludeOutboundPorts, s.Ranges.IncludeOutbound, s.ExcludeOutboundPorts, s.Ranges.ExcludeOutbound); included != "" && !s.IncludeCIDRs.All {
		if len(s.ExcludeCIDRs) > 0 {
			included += " of any address but " + prefixWords(s.ExcludeCIDRs)
		}
		out = append(out, fmt.Sprintf("outbound: %stcp to %s -> proxy's %d", s.groupWords(), included, s.OutboundPort))
	}
	if len(out) == 0 {
		return []string{"outbound: direct"}
	}
	return out
}

// groupWords says whose traffic it is, if not everybody's.
func (s Spec) groupWords() string {
	switch {
	case !s.OwnerGroups.All:
		return "of groups " + joined(s.OwnerGroups.List, ", ") + ": "
	case len(s.OwnerGroups.Exclude) > 0:
		return "not of groups " + joined(s.OwnerGroups.Exclude, ", ") + ": "
	}
	return ""
}

func (s Spec) inboundSummary() string {
	if !s.capturesInbound() {
		return "inbound: direct"
	}
	var tunnel []uint16
	unchanged := ", addresses unchanged"
	if s.Mode == ModeRedirect {
		tunnel = []uint16{s.TunnelPort}
		unchanged = ""
	}
	ports := "any port"
	if s.IncludeInboundPorts.All {
		if direct := portSet("", slices.Concat(s.ExcludeInboundPorts, tunnel), s.Ranges.ExcludeInbound); len(direct.elements()) > 0 {
			ports += " but " + direct.words()
		}
	} else {
		ports = portWords(s.IncludeInboundPorts.List, s.Ranges.IncludeInbound, tunnel, nil)
	}
	if ports == "" {
		return "inbound: direct"
	}
	if s.IncludeInboundPorts.Listening {
		ports += " on which somebody listens"
	}
	from := ""
	if len(s.ExcludeSources) > 0 {
		from = " from anywhere but " + prefixWords(s.ExcludeSources)
	}
	return fmt.Sprintf("inbound: tcp%s to %s -> proxy's %d%s", from, ports, s.InboundPort, unchanged)
}

// portWords lists ports and ranges except some others; "" if none is left.
func portWords(ports []uint16, ranges []PortRange, except []uint16, exceptRanges []PortRange) string {
	left := portSet("", ports, ranges)
	left.Ranges = SubtractPorts(left.Ranges, JoinPorts(except, exceptRanges))
	if len(left.elements()) == 0 {
		return ""
	}
	list := left.words()
	return portWord(list) + list
}

func (s Spec) ownerSummary() string {
	var by []string
	if s.ProxyUID != 0 {
		by = append(by, fmt.Sprintf("user %d", s.ProxyUID))
	}
	if s.ProxyGID != 0 {
		by = append(by, fmt.Sprintf("group %d", s.ProxyGID))
	}
	return "the proxy's own traffic, known by " + strings.Join(by, " or ") + ": direct"
}

func prefixWords(list []netip.Prefix) string {
	v4, v6 := splitFamilies(list)
	return Set{Prefixes: append(canonicalPrefixes(v4), canonicalPrefixes(v6)...)}.words()
}
