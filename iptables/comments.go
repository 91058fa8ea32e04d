package iptables

import (
	"net/netip"
	"slices"
)

// Comments returns the comments of all rules that any Ruleset may have.
func Comments() []string {
	var out []string
	for _, mode := range []Mode{ModeRedirect, ModeTProxy} {
		for _, dns := range []DNSMode{DNSAll, DNSOff} {
			s := DefaultSpec()
			s.Mode, s.DNS, s.DropInvalid, s.RerouteDNS = mode, dns, true, true
			s.ExcludeInterfaces, s.RerouteInterfaces = []string{"a"}, []string{"b"}
			s.ExcludeCIDRs = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
			s.ExcludeSources, s.ExcludeUsers = s.ExcludeCIDRs, []Users{{}}
			s.IncludeOutboundPorts, s.LoopbackCIDR = []uint16{1}, netip.MustParsePrefix("127.0.0.0/8")
			for _, g := range []Groups{{All: true, Exclude: []uint32{1}}, {List: []uint32{1}}} {
				s.OwnerGroups = g
				rules, _ := Rules(s) // an invalid Spec has no rules
				for _, c := range rules.Chains {
					for _, r := range c.Rules {
						out = append(out, r.Comment)
					}
				}
			}
		}
	}
	out = append(out, commentDirectIPv6)
	slices.Sort(out)
	return slices.Compact(out)
}
