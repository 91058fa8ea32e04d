package xtables

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// jumps counts our jumps by asking iptables itself.
func jumps(t *testing.T, ns *netns.NS, flavour Flavour) int {
	t.Helper()
	script := "for p in iptables ip6tables; do for t in raw mangle nat; do $p-FLAVOUR -t $t -S; done; done"
	out := shell(t, ns, strings.ReplaceAll(script, "FLAVOUR", string(flavour)))
	n := 0
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "-A ") && !strings.HasPrefix(line, "-A "+iptables.ChainPrefix) && strings.Contains(line, "-j "+iptables.ChainPrefix) {
			n++
		}
	}
	return n
}

// Each case is something that somebody else does to our rules; it must be seen, and one apply must heal it.
func TestApply_drift_isRepaired(t *testing.T) {
	cases := map[string]struct {
		script, names string
		kind          iptables.Kind
	}{
		"a rule is gone":             {"I -t nat -D PODNET_OUTBOUND 3", "-A PODNET_OUTBOUND", "rules"},
		"a chain is flushed":         {"I -t nat -F PODNET_INBOUND", "-A PODNET_INBOUND", "rules"},
		"a jump is gone":             {"I -t nat -D OUTPUT 1", "- -I OUTPUT 1", "rules"},
		"a jump is doubled":          {"I -t nat -A OUTPUT -m comment --comment pod-network-controller -j PODNET_OUTBOUND", "+ -I OUTPUT 2", "rules"},
		"a foreign rule is in front": {"I -t nat -I OUTPUT 1 -p tcp -j ACCEPT", "+ -I OUTPUT 2", "rules"},
		"a rule of others inside":    {"I -t nat -I PODNET_OUTBOUND 1 -p tcp -j ACCEPT", "+ -A PODNET_OUTBOUND -p tcp -j ACCEPT", "rules"},
		"everything is flushed":      {"I -t nat -F; I -t nat -X", "- :PODNET_OUTBOUND", "table"},
		"IPv6 alone is touched":      {"ip6tables-FLAVOUR -t nat -F PODNET_OUTBOUND", "- -A PODNET_OUTBOUND", "rules"},
		"an address is gone":         {"ip addr del ::6/128 dev lo", "- address ::6/128", "address"},
	}
	for name, c := range cases {
		for _, flavour := range flavours() {
			t.Run(name+"/"+string(flavour), func(t *testing.T) {
				ns, b, want := kerneltest.New(t), newBackend(t, flavour), rules(t, nil)
				mustApply(t, b, ns, want)
				script := strings.ReplaceAll(c.script, "FLAVOUR", string(flavour))
				shell(t, ns, "I() { iptables-"+string(flavour)+" \"$@\"; }; "+script)
				drift, err := b.Verify(t.Context(), ns.Path(), want)
				if err != nil || !strings.Contains(drift.String(), c.names) {
					t.Fatalf("drift does not name %q:\n%s\nerror %v", c.names, drift, err)
				}
				if out, err := b.Apply(t.Context(), ns.Path(), want); err != nil || !slices.Contains(out.Drift.Kinds(), c.kind) {
					t.Errorf("apply repaired %q, error %v, want %q", out.Drift, err, c.kind)
				}
				mustHold(t, b, ns, want)
				if n := jumps(t, ns, flavour); n != 8 { // nat and mangle, in both directions, for two families
					t.Errorf("%d jumps, want 8", n)
				}
			})
		}
	}
}

func TestApply_again_addsNoJump(t *testing.T) {
	for _, flavour := range flavours() {
		ns, b := kerneltest.New(t), newBackend(t, flavour)
		for i := range 3 {
			mustApply(t, b, ns, rules(t, nil))
			mustApply(t, b, ns, rules(t, tproxyAndDNS))
			// nat and raw OUTPUT, mangle in both directions, for two families
			if n := jumps(t, ns, flavour); n != 8 {
				t.Errorf("%s, time %d: %d jumps, want 8", flavour, i, n)
			}
		}
	}
}

// Others' rules, of whatever kind, live through apply, repair, a change of mode and removal.
func TestApply_foreignRules_stay(t *testing.T) {
	foreign := `for p in iptables-nft iptables-legacy ip6tables-nft ip6tables-legacy; do
  for t in nat mangle filter raw; do $p -t $t -N FOREIGN; $p -t $t -A FOREIGN -p tcp --dport 7 -j RETURN; $p -t $t -A OUTPUT -j FOREIGN; done
  $p -P FORWARD DROP
done
nft add table inet foreign; nft add chain inet foreign c '{ type filter hook output priority 0; }'; nft add rule inet foreign c tcp dport 9 accept
nft add table ip foreign; nft add table ip6 foreign`
	others := `for p in iptables-nft ip6tables-nft iptables-legacy ip6tables-legacy; do $p-save 2>/dev/null; done | grep -v -e '^#' -e PODNET_
nft list table inet foreign; nft list table ip foreign; nft list table ip6 foreign`
	for _, flavour := range flavours() {
		t.Run(string(flavour), func(t *testing.T) {
			ns, b := kerneltest.New(t), newBackend(t, flavour)
			shell(t, ns, foreign)
			before, whole := shell(t, ns, others), shell(t, ns, "nft list ruleset")
			expect := func(step string) {
				t.Helper()
				if d := cmp.Diff(before, shell(t, ns, others)); d != "" {
					t.Errorf("%s: %s", step, d)
				}
			}
			mustApply(t, b, ns, rules(t, nil))
			expect("apply")
			shell(t, ns, "iptables-"+string(flavour)+" -t nat -F PODNET_OUTBOUND")
			mustApply(t, b, ns, rules(t, nil))
			expect("repair")
			mustApply(t, b, ns, rules(t, tproxyAndDNS))
			expect("change of mode")
			mustHold(t, b, ns, rules(t, tproxyAndDNS))
			if _, err := b.Remove(t.Context(), ns.Path()); err != nil {
				t.Fatal(err)
			}
			expect("removal")
			if after := shell(t, ns, "nft list ruleset"); flavour == Legacy && after != whole {
				t.Error(cmp.Diff(whole, after))
			}
		})
	}
}

// Somebody who puts a rule into a table that came with us, or changes a policy of it, keeps both.
func TestRemove_foreignRulesInOurTables_stay(t *testing.T) {
	ns, b := kerneltest.New(t), newBackend(t, NFT)
	mustApply(t, b, ns, rules(t, tproxyAndDNS))
	shell(t, ns, "iptables-nft -t nat -A POSTROUTING -j MASQUERADE; ip6tables-nft -t mangle -P FORWARD DROP; iptables-nft -t raw -N OTHER")
	if _, err := b.Remove(t.Context(), ns.Path()); err != nil {
		t.Fatal(err)
	}
	out := shell(t, ns, "iptables-nft-save; ip6tables-nft-save; nft list ruleset")
	for _, kept := range []string{"-A POSTROUTING -j MASQUERADE", ":FORWARD DROP", ":OTHER"} {
		if !strings.Contains(out, kept) {
			t.Errorf("%s is gone:\n%s", kept, out)
		}
	}
	if strings.Contains(out, iptables.ChainPrefix) {
		t.Error(out)
	}
}
