package nftables

import (
	"net/netip"
	"os"
	"os/exec"
	goruntime "runtime"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

func spec(change func(*iptables.Spec)) iptables.Spec {
	s := iptables.DefaultSpec()
	if change != nil {
		change(&s)
	}
	return s
}

func rules(t testing.TB, change func(*iptables.Spec)) iptables.Ruleset {
	t.Helper()
	r, err := iptables.Rules(spec(change))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func mustApply(t testing.TB, b byPath, ns *netns.NS, r iptables.Ruleset) (changed bool) {
	t.Helper()
	out, err := b.Apply(t.Context(), ns.Path(), r)
	if err != nil {
		t.Fatal(err)
	}
	return out.Changed()
}

func manyCIDRs() (out []netip.Prefix) {
	for i := range 5000 {
		out = append(out, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24),
			netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 1, byte(i >> 8), byte(i)}), 48))
	}
	return out
}

// What is read back is what was asked for, whatever the shape of the rules; and a second apply finds nothing to do.
func TestApplyThenVerifyFindsNoDrift(t *testing.T) {
	cases := map[string]func(*iptables.Spec){
		"the defaults": nil,
		"no capture at all": func(s *iptables.Spec) {
			s.IncludeCIDRs, s.IncludeInboundPorts = iptables.CIDRs{}, iptables.Ports{}
		},
		"lists of both families": func(s *iptables.Spec) {
			s.IncludeCIDRs = iptables.CIDRs{List: []netip.Prefix{
				netip.MustParsePrefix("10.0.0.0/9"), netip.MustParsePrefix("10.128.0.0/9"), netip.MustParsePrefix("fd00::/8"),
			}}
			s.ExcludeCIDRs = []netip.Prefix{netip.MustParsePrefix("10.8.0.0/32"), netip.MustParsePrefix("fd00:8::/64")}
			s.IncludeOutboundPorts, s.IncludeInboundPorts = []uint16{443, 0, 65535}, iptables.Ports{List: []uint16{80}}
		},
		"the whole and the end of the address space": func(s *iptables.Spec) {
			s.IncludeCIDRs = iptables.CIDRs{List: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}}
			s.ExcludeCIDRs = []netip.Prefix{netip.MustParsePrefix("240.0.0.0/4"), netip.MustParsePrefix("ff00::/8"), netip.MustParsePrefix("::/64")}
		},
		"10,000 CIDRs": func(s *iptables.Spec) { s.ExcludeCIDRs = manyCIDRs() },
		"10,000 ports": func(s *iptables.Spec) {
			for p := range 10000 {
				s.ExcludeOutboundPorts = append(s.ExcludeOutboundPorts, uint16(p))
			}
		},
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			ns, b, want := kerneltest.New(t), newByPath(t), rules(t, change)
			if !mustApply(t, b, ns, want) {
				t.Error("the first apply changed nothing")
			}
			drift, err := b.Verify(t.Context(), ns.Path(), want)
			if err != nil || len(drift) != 0 {
				t.Errorf("drift of %d lines, error %v", len(drift), err)
			}
			for _, b := range []byPath{b, newByPath(t)} { // the second one remembers nothing
				if mustApply(t, b, ns, want) {
					t.Error("another apply changed something")
				}
			}
		})
	}
}

// Each case is something that somebody else does to our table; it must be seen for what it is, and one apply must heal it.
func TestDriftIsFoundAndHealed(t *testing.T) {
	for name, c := range map[string]struct {
		kind  iptables.Kind
		spoil spoil
	}{
		"a chain is flushed":           {iptables.KindRules, script("flush chain T outbound")},
		"the table is gone":            {iptables.KindAbsent, script("delete table T")},
		"a foreign rule is in the way": {iptables.KindRules, script("insert rule T outbound accept")},
		"a foreign chain":              {iptables.KindTable, script("add chain T foreign")},
		"a set has lost an element":    {iptables.KindSets, script("delete element T exclude-inbound-ports.0 { 15020 }")},
		"the table sleeps":             {iptables.KindTable, script("add table T { flags dormant; }")},
	} {
		t.Run(name, func(t *testing.T) {
			ns, b, want := kerneltest.New(t), newByPath(t), rules(t, nil)
			mustApply(t, b, ns, want)
			mustApply(t, b, ns, want) // looks, and remembers
			c.spoil(t, ns)
			if drift, err := b.Verify(t.Context(), ns.Path(), want); err != nil || len(drift) == 0 {
				t.Fatalf("drift %q, error %v", drift, err)
			}
			if out, err := b.Apply(t.Context(), ns.Path(), want); err != nil || !slices.Equal(out.Drift.Kinds(), []iptables.Kind{c.kind}) {
				t.Errorf("apply repaired %q, error %v, want %q", out.Drift, err, c.kind)
			}
			mustHold(t, ns, want)
		})
	}
}

func TestRemoveTakesAwayOnlyOurs(t *testing.T) {
	kerneltest.ProgramPath(t, "nft")
	ns, b := kerneltest.New(t), newByPath(t)
	before := listRuleset(t, ns)
	mustApply(t, b, ns, rules(t, nil))
	for _, want := range []bool{true, false} { // absent is success, and nothing
		removed, err := b.Remove(t.Context(), ns.Path())
		if err != nil || removed != want {
			t.Fatalf("removed %v, error %v; want %v", removed, err, want)
		}
	}
	if d := cmp.Diff(before, listRuleset(t, ns)); d != "" {
		t.Error(d)
	}
}

// listRuleset is all tables and all addresses of lo, with a foreign table made first.
func listRuleset(t *testing.T, ns *netns.NS) (out string) {
	t.Helper()
	err := ns.Inside(func() error {
		script := "nft add table inet foreign; nft add chain inet foreign c; nft list ruleset; ip -o addr show lo"
		b, err := exec.CommandContext(t.Context(), "sh", "-ec", script).CombinedOutput()
		out = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err, out)
	}
	return out
}

func TestNoDescriptorIsLeftBehind(t *testing.T) {
	ns, b := kerneltest.New(t), newByPath(t)
	mustApply(t, b, ns, rules(t, nil))
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	before := count()
	for range 20 {
		mustApply(t, b, ns, rules(t, func(s *iptables.Spec) { s.InboundPort = 16006 }))
		mustApply(t, b, ns, rules(t, nil))
		if _, err := b.Apply(t.Context(), "/proc/self/ns/net", rules(t, nil)); err == nil {
			t.Fatal("the host's namespace was accepted")
		}
	}
	goruntime.GC()
	if after := count(); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}
