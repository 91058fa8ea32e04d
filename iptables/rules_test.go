package iptables

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

func with(change func(*Spec)) Spec {
	s := DefaultSpec()
	change(&s)
	return s
}

func cidrs(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, c := range list {
		out = append(out, netip.MustParsePrefix(c))
	}
	return out
}

// goldenSpecs are what testdata has the texts of, for people to read: the defaults, and one of all settings for each mode. That the renderings of any
// Spec are the same rules is shown by test/interpreter.
func goldenSpecs() map[string]Spec {
	users := []Users{{First: 999, Last: 999}, {First: 2000, Last: 2999}, {First: 0, Last: 5, Port: 443}, {First: 7, Last: 7, Port: 53}}
	return map[string]Spec{
		"defaults": DefaultSpec(),
		"redirect": with(func(s *Spec) {
			s.IncludeInboundPorts.Listening = true
			s.IncludeCIDRs = CIDRs{List: cidrs("10.96.0.0/12", "10.1.2.3/16", "fd00:10:96::/112", "10.96.5.0/24")}
			s.ExcludeCIDRs, s.ExcludeSources = cidrs("10.8.0.0/16", "2001:db8::/64"), cidrs("10.1.2.3/32", "fd00:1::/64")
			s.IncludeOutboundPorts, s.ExcludeUsers = []uint16{443, 80}, users
			s.Ranges = Ranges{ExcludeInbound: []PortRange{{8000, 8999}, {0, 7}}, ExcludeOutbound: []PortRange{{9000, 9099}}, IncludeOutbound: []PortRange{{9100, 9199}}}
			s.OwnerGroups.Exclude = []uint32{888}
			s.ExcludeInterfaces, s.RerouteInterfaces = []string{"net1"}, []string{"k6t-eth0"}
			s.DNS, s.RerouteDNS, s.DirectIPv6 = DNSAll, true, true
		}),
		"tproxy": with(func(s *Spec) {
			s.Mode, s.DropInvalid, s.LoopbackCIDR = ModeTProxy, true, netip.MustParsePrefix("127.0.0.0/30")
			s.OutboundPort, s.InboundPort, s.TunnelPort, s.ProxyUID, s.ProxyGID = 16001, 16006, 16008, 2000, 3000
			s.IncludeInboundPorts = Ports{List: []uint16{9090, 8080, 9090}, Listening: true}
			for p := range uint16(20) {
				s.Ranges.IncludeInbound = append(s.Ranges.IncludeInbound, PortRange{100 * p, 100*p + 1})
			}
			s.IncludeCIDRs, s.ExcludeSources = CIDRs{List: cidrs("0.0.0.0/0", "fd00::/8")}, cidrs("192.168.0.0/16", "fd00:1::/64")
			s.OwnerGroups = Groups{List: []uint32{1000, 0}}
			s.ExcludeInterfaces, s.RerouteInterfaces = []string{"net1", "net2"}, []string{"k6t-eth0", "k6t-eth1"}
			s.DNS, s.Resolvers = DNSResolvConf, []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:10:96::a")}
		}),
	}
}

func TestNftTextIsGolden(t *testing.T) {
	for name, spec := range goldenSpecs() {
		t.Run(name, func(t *testing.T) {
			goldenFile(t, name+".nft", mustRules(t, spec).NftText(TextOptions{Replace: true}))
		})
	}
}

func TestCanonicalPrefixes(t *testing.T) {
	cases := map[string]struct{ in, want []string }{
		"a contained prefix is dropped":          {in: []string{"10.1.0.0/16", "10.0.0.0/8"}, want: []string{"10.0.0.0/8"}},
		"duplicates are dropped":                 {in: []string{"10.0.0.0/8", "10.0.0.0/8"}, want: []string{"10.0.0.0/8"}},
		"host bits are masked":                   {in: []string{"10.1.2.3/8"}, want: []string{"10.0.0.0/8"}},
		"neighbours stay apart":                  {in: []string{"10.128.0.0/9", "10.0.0.0/9"}, want: []string{"10.0.0.0/9", "10.128.0.0/9"}},
		"the whole space swallows everything":    {in: []string{"::1/128", "::/0", "fd00::/8"}, want: []string{"::/0"}},
		"a sibling behind a nested one survives": {in: []string{"10.0.0.0/24", "10.0.0.4/32", "10.0.1.0/24"}, want: []string{"10.0.0.0/24", "10.0.1.0/24"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, p := range canonicalPrefixes(cidrs(c.in...)) {
				got = append(got, p.String())
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestValidateNamesEveryFault(t *testing.T) {
	err := Spec{
		Mode: "SIDEWAYS", OutboundPort: 15001, InboundPort: 15001,
		LoopbackCIDR: netip.MustParsePrefix("127.0.0.4/30"),
	}.Validate()
	for _, want := range []string{`"SIDEWAYS"`, "both 15001", "uid is 0", "do not hold 127.0.0.1"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not mention %s", err, want)
		}
	}
	if _, err := Rules(Spec{}); err == nil {
		t.Error("rules of an invalid spec")
	}
}

func TestValidate_loopbackRange_holdsIPv4Loopback(t *testing.T) {
	for text, want := range map[string]string{
		"127.0.0.1/32": "", "127.0.0.0/8": "", "127.0.0.4/30": "do not hold", "10.0.0.0/8": "are no IPv4", "10.0.0.0/7": "are no IPv4",
		"127.0.0.0/7": "are no IPv4", "::1/128": "are no IPv4", "": "are no IPv4",
	} {
		p, _ := netip.ParsePrefix(text) // "" is no range
		if got := WrongLoopback(p); !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

func TestEqualSpecsRenderEqually(t *testing.T) {
	for seed := range uint64(200) {
		a, b := randomSpec(seed), randomSpec(seed)
		if a.Hash() != b.Hash() {
			t.Fatalf("seed %d: hashes of equal specs differ", seed)
		}
		ra, rb := mustRules(t, a).NftText(TextOptions{}), mustRules(t, b).NftText(TextOptions{})
		if d := cmp.Diff(ra, rb); d != "" {
			t.Fatalf("seed %d: %s", seed, d)
		}
		if c := with(func(s *Spec) { *s = a; s.InboundPort++ }); c.Hash() == a.Hash() {
			t.Fatalf("seed %d: a changed spec has the same hash", seed)
		}
	}
}

// Whatever a spec asks for, what one family gets the other gets too: an address that comes later finds its rules.
func TestEveryAddressRuleHasItsTwin(t *testing.T) {
	for seed := range uint64(200) {
		spec := randomSpec(seed)
		spec.ExcludeCIDRs = append(spec.ExcludeCIDRs, cidrs("192.0.2.0/24", "2001:db8:f::/48")...)
		spec.ExcludeSources = append(spec.ExcludeSources, cidrs("192.0.2.0/24", "2001:db8:f::/48")...)
		if len(spec.IncludeCIDRs.List) > 0 {
			spec.IncludeCIDRs.List = append(spec.IncludeCIDRs.List, cidrs("198.51.100.0/24", "2001:db8:e::/48")...)
		}
		count := map[uint32]int{}
		for _, chain := range mustRules(t, spec).Chains {
			for _, rule := range chain.Rules {
				for _, c := range rule.Conds {
					if c.Field == Family {
						count[c.Num]++
					}
				}
			}
		}
		if count[IPv4] != count[IPv6] || count[IPv4] == 0 {
			t.Fatalf("seed %d: %d rules for IPv4, %d for IPv6", seed, count[IPv4], count[IPv6])
		}
	}
}

// Whatever a Spec asks for, each jump leads to a chain without a hook that is there, in every rendering, and no such chain is left over.
func TestRules_everyJump_hasItsChain(t *testing.T) {
	for name, spec := range someSpecs() {
		r := mustRules(t, spec)
		asked := jumpTargets(r)
		for _, c := range r.Chains {
			if (c.Hook == "") != asked[c.Name] {
				t.Errorf("%s: chain %s, hook %q, asked %v", name, c.Name, c.Hook, asked[c.Name])
			}
			delete(asked, c.Name)
		}
		if len(asked) > 0 {
			t.Errorf("%s: no chain %v", name, asked)
		}
		for _, family := range bothFamilies() {
			text := r.RestoreText(family)
			for word := range strings.FieldsSeq(text) {
				if strings.HasPrefix(word, ChainPrefix) && !strings.Contains(text, ":"+word+" - [0:0]") {
					t.Errorf("%s: no chain %s in\n%s", name, word, text)
				}
			}
		}
	}
}

// Chains decide in an order among themselves, and among those of others. TPROXY alone has no chain that redirects inbound traffic.
func TestRules_everyChain_isInItsPlace(t *testing.T) {
	places := map[string]string{
		"outbound": "nat output -105", "outbound-reused": "filter output -155", "outbound-mark": "route output -155", "dns-zones-outbound": "filter output -305",
		"inbound": "nat prerouting -105", "inbound-reused": "filter prerouting -155", "inbound-divert": "filter prerouting -145", "dns-zones-inbound": "filter prerouting -305",
	}
	for name, spec := range someSpecs() {
		for _, c := range mustRules(t, spec).Chains {
			if place := fmt.Sprintf("%s %s %d", c.Type, c.Hook, c.Priority); c.Hook != "" && place != places[c.Name] {
				t.Errorf("%s: chain %s is at %s, want %q", name, c.Name, place, places[c.Name])
			}
			if c.Name == chainInbound && spec.Mode == ModeTProxy && len(spec.RerouteInterfaces) == 0 {
				t.Errorf("%s: chain %s", name, c.Name)
			}
		}
	}
}

// What iptables-nft reads back has a condition once that a rule names twice: the rule would be repaired with each check.
func TestRules_everyRule_namesAConditionOnce(t *testing.T) {
	for name, spec := range someSpecs() {
		for _, c := range mustRules(t, spec).Chains {
			for _, rule := range c.Rules {
				for i, cond := range rule.Conds {
					if slices.Contains(rule.Conds[:i], cond) {
						t.Errorf("%s: twice %s in %s", name, cond.text(rule.Conds[:i]), rule.Text())
					}
				}
			}
		}
	}
}

func TestProxyPorts_whatIsCaptured_leadsThere(t *testing.T) {
	nothing := func(s *Spec) { s.IncludeCIDRs, s.IncludeInboundPorts = CIDRs{}, Ports{} }
	for name, c := range map[string]struct {
		change func(*Spec)
		want   []uint16
	}{
		"the defaults":       {func(*Spec) {}, []uint16{15001, 15006}},
		"nothing":            {nothing, nil},
		"one range":          {func(s *Spec) { nothing(s); s.IncludeCIDRs.List = cidrs("10.0.0.0/8") }, []uint16{15001}},
		"one port, outbound": {func(s *Spec) { nothing(s); s.IncludeOutboundPorts = []uint16{443} }, []uint16{15001}},
		"one port, inbound":  {func(s *Spec) { nothing(s); s.IncludeInboundPorts.List = []uint16{80} }, []uint16{15006}},
	} {
		if got := with(c.change).ProxyPorts(); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func jumpTargets(r Ruleset) map[string]bool {
	asked := map[string]bool{}
	for _, c := range r.Chains {
		for _, rule := range c.Rules {
			if rule.Action.Chain != "" {
				asked[rule.Action.Chain] = true
			}
		}
	}
	return asked
}

func TestDiff_addressesAndRoutes_areNamed(t *testing.T) {
	with, without := Ruleset{Loopback: true, Routing: true}, Ruleset{}
	missing, more := Diff(with, without).String(), Diff(without, with).String()
	if !strings.Contains(missing, "- address ::6/128 on lo\n- ip rule add fwmark") || !strings.HasPrefix(more, "+ ip rule add fwmark") {
		t.Errorf("missing:\n%s\ntoo much:\n%s", missing, more)
	}
	if d := Diff(with, with); len(d) != 0 {
		t.Errorf("equal ones differ: %s", d)
	}
}

func mustRules(t *testing.T, s Spec) Ruleset {
	t.Helper()
	r, err := Rules(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func randomSpec(seed uint64) Spec {
	r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test wants repeatable numbers
	ports := func() []uint16 {
		out := make([]uint16, r.IntN(5))
		for i := range out {
			out[i] = uint16(r.UintN(65536))
		}
		return out
	}
	prefixes := func() []netip.Prefix {
		out := make([]netip.Prefix, r.IntN(6))
		for i := range out {
			a4 := netip.AddrFrom4([4]byte{10, byte(r.UintN(256)), byte(r.UintN(4)), 0})
			out[i] = netip.PrefixFrom(a4, 8+r.IntN(25))
			if r.IntN(2) == 0 {
				out[i] = netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0, byte(r.UintN(4))}), 8+r.IntN(120))
			}
		}
		return out
	}
	half := func() bool { return r.IntN(2) == 0 }
	ranges := func() (out []PortRange) {
		for _, p := range ports() {
			out = append(out, PortRange{p, p | 7})
		}
		return out
	}
	return with(func(s *Spec) {
		if half() {
			s.Mode = ModeTProxy
		}
		s.IncludeCIDRs = CIDRs{All: half()}
		if !s.IncludeCIDRs.All {
			s.IncludeCIDRs.List = prefixes()
		}
		s.ExcludeCIDRs, s.ExcludeSources = prefixes(), prefixes()
		s.IncludeInboundPorts = Ports{All: half(), List: ports(), Listening: half()}
		s.ExcludeInboundPorts, s.IncludeOutboundPorts, s.ExcludeOutboundPorts = ports(), ports(), ports()
		s.Ranges = Ranges{IncludeInbound: ranges(), ExcludeInbound: ranges(), IncludeOutbound: ranges(), ExcludeOutbound: ranges()}
		if half() {
			s.OwnerGroups = Groups{List: []uint32{1000, r.Uint32()}}
		}
		if half() {
			s.ExcludeUsers = []Users{{First: 0, Last: r.Uint32(), Port: 53}, {First: 7, Last: 7}}
			s.ExcludeInterfaces, s.RerouteInterfaces = []string{"net1"}, []string{"net2", "a-long-interface"[:15]}
		}
		s.DNS = []DNSMode{DNSOff, DNSAll, DNSResolvConf}[r.IntN(3)]
		s.Resolvers = []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00::a")}
		s.RerouteDNS, s.DropInvalid = half(), half()
	})
}

// someSpecs are the ones that testdata has the texts of, some at the edges, and random ones.
func someSpecs() map[string]Spec {
	out := goldenSpecs()
	out["nothing outbound"] = with(func(s *Spec) { s.IncludeCIDRs, s.ExcludeOutboundPorts = CIDRs{}, nil })
	out["TPROXY alone"] = with(func(s *Spec) { s.Mode = ModeTProxy })
	out["the tunnel's port is that of lookups"] = with(func(s *Spec) { s.TunnelPort, s.DNS = dnsPort, DNSAll })
	for seed := range uint64(200) {
		out[fmt.Sprint("seed ", seed)] = randomSpec(seed)
	}
	return out
}
