package interpreter

import (
	"encoding/json"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"istio-pod-network-controller/iptables"
)

// specs is how many random Specs a test draws, and packets is how many packets for each.
const (
	specs   = 400
	packets = 400
)

// forEach calls f with random Specs until a test has failed.
func forEach(t *testing.T, f func(d draw, s iptables.Spec, r iptables.Ruleset, e edges)) {
	t.Helper()
	seed := seedOf(t)
	for i := range uint64(specs) {
		d := newDraw(seed, i)
		s := d.spec()
		r, err := iptables.Rules(s)
		if err != nil {
			t.Fatal(err)
		}
		if f(d, s, r, edgesOf(s)); t.Failed() {
			text, _ := json.Marshal(s)
			t.Fatalf("spec %d: %s", i, text)
		}
	}
}

// Random specs decide about random packets as the tables of docs/redirection.md say.
func TestRules_randomPackets_meetTheContract(t *testing.T) {
	forEach(t, func(d draw, s iptables.Spec, r iptables.Ruleset, e edges) {
		for range packets {
			hook := one(d, iptables.Output, iptables.Prerouting)
			p := d.packet(e, hook)
			want := oracle{s}.prerouting(p)
			if hook == iptables.Output {
				want = oracle{s}.output(p)
			}
			compare(t, r, hook, p, want)
		}
	})
}

func compare(t *testing.T, r iptables.Ruleset, hook iptables.Hook, p Packet, want Verdict) {
	t.Helper()
	got, err := Decide(r, hook, p)
	if err != nil {
		t.Fatalf("%s, %s: %v", hook, p, err)
	}
	if d := cmp.Diff(want, got, cmpopts.IgnoreFields(Verdict{}, "Trace")); d != "" {
		t.Errorf("%s, %s: -want +got:\n%s%q", hook, p, d, got.Trace)
	}
}

// A connection to the proxy's ports is dropped while nobody listens there, and nothing else is.
func TestHoldingRules_randomPackets_meetTheContract(t *testing.T) {
	held := 0
	forEach(t, func(d draw, s iptables.Spec, _ iptables.Ruleset, e edges) {
		r, err := iptables.HoldingRules(s, iptables.HoldBoth)
		if err != nil {
			t.Fatal(err)
		}
		e.ports = append(e.ports, s.OutboundPort, s.InboundPort)
		for range packets {
			p := d.packet(e, iptables.Input)
			want := oracle{s}.input(p)
			if want.Dropped {
				held++
			}
			compare(t, r, iptables.Input, p, want)
			compare(t, r, iptables.Prerouting, p, oracle{s}.prerouting(p))
		}
	})
	if held < 1000 {
		t.Errorf("%d connections prove too little", held)
	}
}

// A proxy that dials its own listeners would do so for ever.
func TestRules_proxyDialsItself_neverArrives(t *testing.T) {
	dialled := 0
	forEach(t, func(d draw, s iptables.Spec, r iptables.Ruleset, e edges) {
		for range packets {
			p := d.packet(e, iptables.Output)
			p.Dst = netip.AddrPortFrom(p.Dst.Addr(), one(d, s.OutboundPort, s.InboundPort))
			if !(oracle{s}).isProxy(p) || !opens(p) || p.Out != Loopback() || s.DirectIPv6 && isIPv6(p) || slices.Contains(s.ExcludeInterfaces, "lo") {
				continue
			}
			p.State, p.Status = iptables.New, 0
			dialled++
			out, in, err := Send(r, p)
			if err != nil {
				t.Fatal(err)
			}
			if arrives := out.Redirect == 0 || out.Redirect == s.OutboundPort || out.Redirect == s.InboundPort || in.TProxy != 0; arrives && !out.Dropped && !in.Dropped {
				t.Errorf("%s arrives: %+v, %+v", p, out, in)
			}
		}
	})
	if dialled < 1000 {
		t.Errorf("%d connections prove too little", dialled)
	}
}

// What the interpreter does not know is an error.
func TestDecide_unknownFieldOrVerb_isAnError(t *testing.T) {
	p := Packet{Protocol: iptables.TCP, State: iptables.New, Dst: netip.MustParseAddrPort("10.0.0.1:80")}
	tcp := iptables.Cond{Field: iptables.Protocol, Num: iptables.TCP}
	for name, rule := range map[string]iptables.Rule{
		"verb":                     {Action: iptables.Action{Verb: 200}},
		"no verb":                  {},
		"no chain to jump to":      {Action: iptables.Action{Verb: iptables.Jump, Chain: "c"}},
		"no chain to go to":        {Action: iptables.Action{Verb: iptables.Goto, Chain: "c"}},
		"field":                    {Conds: []iptables.Cond{{Field: 200}}, Action: iptables.Action{Verb: iptables.Return}},
		"set":                      {Conds: []iptables.Cond{tcp, {Field: iptables.DstPort, Set: "x"}}, Action: iptables.Action{Verb: iptables.Return}},
		"port without a protocol":  {Conds: []iptables.Cond{{Field: iptables.DstPort, Num: 80}}, Action: iptables.Action{Verb: iptables.Return}},
		"address without a family": {Conds: []iptables.Cond{{Field: iptables.DstAddr, Prefix: netip.MustParsePrefix("10.0.0.0/8")}}, Action: iptables.Action{Verb: iptables.Return}},
		"number with a set":        {Conds: []iptables.Cond{{Field: iptables.Mark, Set: "x"}}, Action: iptables.Action{Verb: iptables.Return}},
	} {
		r := iptables.Ruleset{Chains: []iptables.Chain{{Name: "c", Type: iptables.NAT, Hook: iptables.Output, Rules: []iptables.Rule{rule}}}}
		if v, err := Decide(r, iptables.Output, p); err == nil {
			t.Errorf("%s: %+v", name, v)
		}
	}
	r := iptables.Ruleset{Chains: []iptables.Chain{{Name: "c", Type: "other", Hook: iptables.Output}}}
	if _, err := Decide(r, iptables.Output, p); err == nil {
		t.Error("a chain of an unknown type")
	}
}
