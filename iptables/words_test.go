package iptables

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestWordsAreGolden(t *testing.T) {
	for name, spec := range goldenSpecs() {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			for _, l := range mustRules(t, spec).Lines() {
				if l.Packets == nil {
					t.Errorf("%s: %s has no counter", l.Chain, l.Words)
				}
				fmt.Fprintf(&b, "%s: %s  # %s\n", l.Chain, l.Words, l.Why)
			}
			goldenFile(t, name+".words", strings.Join(spec.Summary(), "\n")+"\n\n"+b.String())
		})
	}
}

func TestWordsOfARule(t *testing.T) {
	ports := []Set{{Name: "some", Kind: PortSet, Ranges: single([]uint16{80, 443})}}
	for p := range uint16(20) {
		ports = append(ports, Set{Name: "many", Kind: PortSet})
		ports[1].Ranges = append(ports[1].Ranges, PortRange{p, p})
	}
	cases := map[string]struct {
		in   Rule
		kind ChainType
		want string
	}{
		"no conditions":           {Rule{Action: direct()}, NAT, "anything -> direct"},
		"return outside of nat":   {Rule{Action: direct(), Conds: []Cond{tcp()}}, Filter, "tcp -> passes"},
		"all but one protocol":    {Rule{Action: direct(), Conds: []Cond{not(tcp())}}, NAT, "anything but tcp -> direct"},
		"another protocol":        {Rule{Action: direct(), Conds: []Cond{proto(132)}}, NAT, "protocol 132 -> direct"},
		"no protocol":             {Rule{Action: direct(), Conds: []Cond{num(OwnerUID, 7)}}, NAT, "anything of user 7 -> direct"},
		"a set":                   {Rule{Action: redirectTo(15001), Conds: []Cond{tcp(), inSet(DstPort, "some")}}, NAT, "tcp to ports 80, 443 -> proxy's 15001"},
		"all but a set":           {Rule{Action: redirectTo(15006), Conds: []Cond{tcp(), not(inSet(DstPort, "some"))}}, NAT, "tcp to any port but 80, 443 -> proxy's 15006"},
		"a long set":              {Rule{Action: direct(), Conds: []Cond{inSet(DstPort, "many")}}, NAT, "anything to ports 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 and 4 more -> direct"},
		"a set that is not there": {Rule{Action: direct(), Conds: []Cond{inSet(DstPort, "gone")}}, NAT, "anything to ports set gone, which is missing -> direct"},
		"a port of an address":    {Rule{Action: direct(), Conds: []Cond{addr(DstAddr, cidrs("::1/128")[0]), port(7)}}, NAT, "anything to ::1 port 7 -> direct"},
		"all but some ports of an address": {
			Rule{Action: direct(), Conds: []Cond{not(addr(DstAddr, cidrs("::1/128")[0])), not(port(7)), not(port(5))}},
			NAT, "anything to anywhere but ::1, any port but 5, 7 -> direct",
		},
		"the order is fixed": {Rule{Action: Action{Verb: Drop}, Conds: []Cond{state(Invalid | New), outLo(), tcp()}}, Filter, "tcp over lo in state invalid,new -> dropped"},
		"an interface by its index": {
			Rule{Action: direct(), Conds: []Cond{num(InIndex, 7), not(num(OutIndex, 8)), num(ReplySrcPort, 9)}},
			NAT,
			"anything coming in by interface 7 not going out by interface 8 answered from port 9 -> direct",
		},
		"another chain":                 {Rule{Action: jump("y"), Conds: []Cond{udp()}}, Filter, "udp -> chain y"},
		"a refusal":                     {Rule{Action: redirectTo(refusedPort), Conds: []Cond{tcp()}}, NAT, "tcp -> refused"},
		"no action that our rules have": {Rule{}, NAT, "anything -> nothing that our rules do"},
		"a name that is not printable":  {Rule{Action: direct(), Conds: []Cond{iif("a\x1b[31m")}}, NAT, "anything coming in by a?[31m -> direct"},
		"a field that is not known":     {Rule{Action: direct(), Conds: []Cond{num(99, 3)}}, NAT, "anything field-99 3 -> direct"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := Ruleset{Sets: ports[:2], Chains: []Chain{{Name: "x", Type: c.kind, Hook: Output, Rules: []Rule{c.in}}}}.Lines()
			if len(got) != 1 || got[0].Words != c.want {
				t.Errorf("got %+v, want %q", got, c.want)
			}
		})
	}
}

// Rules of a chain that another one asks follow it, and lead back to it.
func TestLines_chainWithoutHook_followsItsCaller(t *testing.T) {
	out := Chain{Name: "out", Hook: Output, Rules: []Rule{{Action: jump("asked")}}}
	in := Chain{Name: "in", Hook: Prerouting, Rules: []Rule{{Action: direct()}}}
	asked := Chain{Name: "asked", Rules: []Rule{{Action: direct()}}}
	var got []string
	for _, l := range (Ruleset{Chains: []Chain{in, out, asked}}).Lines() {
		got = append(got, l.Chain+": "+l.Words)
	}
	if want := []string{"out: anything -> chain asked", "asked: anything -> back", "in: anything -> passes"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestLinesAreBounded(t *testing.T) {
	c := Chain{Name: "x", Rules: make([]Rule, maxLines+5)}
	got := Ruleset{Chains: []Chain{c}}.Lines()
	if len(got) != maxLines+1 || got[maxLines].Words != "more rules than are shown" {
		t.Errorf("%d lines", len(got))
	}
	long := Ruleset{Chains: []Chain{{Rules: []Rule{{Comment: strings.Repeat("x", 10000)}}}}}.Lines()
	if len(long[0].Why) != maxWords {
		t.Errorf("%d bytes", len(long[0].Why))
	}
}

func TestLines_ruleWithoutACounter_sayNone(t *testing.T) {
	have := mustRules(t, DefaultSpec())
	have.Chains[0].Rules[0].Uncounted = true
	have.Chains = have.Chains[:1]
	if l := have.Lines()[0]; l.Packets != nil {
		t.Errorf("%+v", l)
	}
}

func TestSummary(t *testing.T) {
	cases := map[string]struct {
		in   func(*Spec)
		want string
	}{
		"an excluded port is not included": {
			func(s *Spec) { s.IncludeCIDRs, s.IncludeOutboundPorts = CIDRs{}, []uint16{80, 15020} }, "outbound: tcp to port 80 -> proxy's 15001",
		},
		"included ports of excluded addresses stay direct": {
			func(s *Spec) {
				s.IncludeCIDRs, s.IncludeOutboundPorts, s.ExcludeCIDRs = CIDRs{}, []uint16{80, 81}, cidrs("10.0.0.0/8")
			},
			"outbound: tcp to ports 80, 81 of any address but 10.0.0.0/8 -> proxy's 15001",
		},
		"ports are included anyway where all addresses are": {
			func(s *Spec) { s.IncludeOutboundPorts = []uint16{80} }, "outbound: tcp to anywhere, any port but 15020 -> proxy's 15001",
		},
		"a single range of addresses": {
			func(s *Spec) { s.IncludeCIDRs = CIDRs{List: cidrs("10.0.0.0/8")} }, "outbound: tcp to 10.0.0.0/8, any port but 15020 -> proxy's 15001",
		},
		"the tunnel port cannot be listed": {
			func(s *Spec) { s.IncludeInboundPorts = Ports{List: []uint16{15008}} }, "inbound: direct",
		},
		"it can with TPROXY": {
			func(s *Spec) { s.IncludeInboundPorts, s.Mode = Ports{List: []uint16{15008}}, ModeTProxy },
			"inbound: tcp to port 15008 -> proxy's 15006, addresses unchanged",
		},
		"the proxy by its group": {func(s *Spec) { s.ProxyUID = 0 }, "the proxy's own traffic, known by group 1337: direct"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := with(c.in).Summary(); !slices.Contains(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
