package nftables

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	nft "github.com/google/nftables"
	"github.com/google/nftables/expr"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

func linesOf(t *testing.T, b byPath, ns *netns.NS) ([]iptables.Line, error) {
	t.Helper()
	have, _, err := b.Read(t.Context(), ns.Path())
	return have.Lines(), err
}

func TestRead_countedPackets_areShown(t *testing.T) {
	ns, b, want := kerneltest.New(t), newByPath(t), rules(t, nil)
	if lines, err := linesOf(t, b, ns); err != nil || len(lines) > 0 {
		t.Errorf("%d lines, error %v", len(lines), err)
	}
	mustApply(t, b, ns, want)
	lines, err := linesOf(t, b, ns)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want.Lines(), lines); d != "" {
		t.Errorf("the kernel's rules have other words: %s", d)
	}
	if _, err := kerneltest.Ask(t.Context(), ns, kerneltest.App, "tcp", "", "127.0.0.1:9"); err == nil {
		t.Fatal("somebody answers")
	}
	if lines, err = linesOf(t, b, ns); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(lines, func(l iptables.Line) bool { return l.Words == "anything over lo not of user 1337 -> direct" })
	if i < 0 || *lines[i].Packets != 1 || *lines[i].Bytes != 60 {
		t.Errorf("no line counts the packet:\n%+v", lines)
	}
	if drift, err := b.Verify(t.Context(), ns.Path(), want); err != nil || len(drift) > 0 {
		t.Errorf("what was counted is drift: %s, error %v", drift, err)
	}
}

func TestRead_rangesOfPortsAndUsers_areShown(t *testing.T) {
	ns, b := kerneltest.New(t), newByPath(t)
	want := rules(t, func(s *iptables.Spec) {
		s.DNS, s.ExcludeUsers = iptables.DNSAll, []iptables.Users{{First: 0, Last: 7}, {First: 256, Last: 4294967294, Port: 443}, {First: 9, Last: 9}}
		s.Ranges.ExcludeInbound = []iptables.PortRange{{First: 0, Last: 255}, {First: 256, Last: 300}, {First: 65535, Last: 65535}}
		s.Ranges.ExcludeOutbound = []iptables.PortRange{{First: 1, Last: 65534}}
	})
	mustApply(t, b, ns, want)
	have, _, err := b.Read(t.Context(), ns.Path())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want.Lines(), have.Lines()); d != "" {
		t.Errorf("the kernel's rules have other words: %s", d)
	}
	if d := cmp.Diff(want.Sets, have.Sets, cmpopts.EquateEmpty()); d != "" {
		t.Error(d)
	}
	for _, changed := range []iptables.Ruleset{rules(t, nil), want} { // a set of ports becomes one of ranges, and back
		if !mustApply(t, b, ns, changed) || mustApply(t, b, ns, changed) {
			t.Error("a changed set is not written once")
		}
	}
}

// Rules that lost their counters, or came from an agent that writes none, capture as before until the next Apply puts them back.
func TestRulesWithoutCountersAreDrift(t *testing.T) {
	ns, b, want := kerneltest.New(t), newByPath(t), rules(t, nil)
	mustApply(t, b, ns, want)
	withoutCounters(t, ns, want)
	lines, err := linesOf(t, b, ns)
	if err != nil || len(lines) != len(want.Lines()) || slices.ContainsFunc(lines, func(l iptables.Line) bool { return l.Packets != nil }) {
		t.Fatalf("lines %+v, error %v", lines, err)
	}
	drift, err := b.Verify(t.Context(), ns.Path(), want)
	if err != nil || !strings.Contains(drift.String(), "+ chain outbound, rules 1 to ") {
		t.Fatalf("drift %s, error %v", drift, err)
	}
	if !mustApply(t, b, ns, want) {
		t.Error("nothing was written")
	}
	mustHold(t, ns, want)
}

// withoutCounters writes the chains as they are, except that no rule counts.
func withoutCounters(t *testing.T, ns *netns.NS, want iptables.Ruleset) {
	t.Helper()
	table := ownTable()
	mustTransact(t, ns, func(c *nft.Conn) error {
		for _, chain := range want.Chains {
			at := &nft.Chain{Table: table, Name: chain.Name}
			c.FlushChain(at)
			for _, r := range chain.Rules {
				exprs := slices.DeleteFunc(encode(r, ".0"), func(e expr.Any) bool { _, counts := e.(*expr.Counter); return counts })
				c.AddRule(&nft.Rule{Table: table, Chain: at, Exprs: exprs, UserData: ruleUserdata(r)})
			}
		}
		return c.Flush()
	})
}

func TestVerify_ruleChanged_namesItAndItsPlace(t *testing.T) {
	ns, b, want := kerneltest.New(t), newByPath(t), rules(t, nil)
	mustApply(t, b, ns, want)
	other := rules(t, nil)
	other.Chains[0].Rules[2].Action = iptables.Action{Verb: iptables.Redirect, Port: 99}
	mustFill(t, ns, other.Chains[:1], map[string]string{other.Chains[0].Name: ""})
	drift, err := b.Verify(t.Context(), ns.Path(), want)
	missing := "- " + want.Chains[0].Rules[2].Text()
	if text := drift.String(); err != nil || text != missing+"\n+ chain outbound, rules 3 to 3: not ours" {
		t.Errorf("drift %s, error %v", text, err)
	}
}
