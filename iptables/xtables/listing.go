package xtables

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"istio-pod-network-controller/iptables"
)

// Text joins the texts of the families, as input for `iptables-restore --noflush -c` and ip6tables-restore that makes the same rules. Addresses
// and routes, which are not part of their language, are in comments.
func Text(routes iptables.Ruleset, rules func(family uint32) string) string {
	var b strings.Builder
	for _, p := range routes.Loopback {
		fmt.Fprintf(&b, "# ip address replace %s dev lo\n", p)
	}
	for _, p := range routes.Routing {
		fmt.Fprintf(&b, "# %s\n", p)
	}
	names := families()
	for _, family := range slices.Sorted(maps.Keys(names)) {
		fmt.Fprintf(&b, "# %s-restore --noflush\n%s", names[family], rules(family))
	}
	return b.String()
}

// lines returns the rules of both families in the language of iptables. Their comments stand beside them.
func (s snapshot) lines() (out []iptables.Line) {
	for _, family := range slices.Sorted(maps.Keys(s)) {
		for _, name := range s[family].names() {
			t := s[family][name]
			for _, chain := range slices.Sorted(maps.Keys(t.chains)) {
				for _, r := range t.chains[chain] {
					rule := strings.Replace(r.spec, "-m comment --comment "+iptables.Quoted(r.comment())+" ", "", 1)
					out = append(out, iptables.NativeLine(chain, families()[family]+" "+rule, r.comment(), r.counter))
				}
			}
		}
	}
	return out
}

// view returns the rules for machines to read. The type of a chain is its family and table, as nftables names them.
func (s snapshot) view(routes iptables.Ruleset) iptables.View {
	v := routes.View()
	for _, family := range slices.Sorted(maps.Keys(s)) {
		prefix := map[uint32]string{iptables.IPv4: "ip ", iptables.IPv6: "ip6 "}[family]
		for _, name := range s[family].names() {
			t := s[family][name]
			for _, chain := range slices.Sorted(maps.Keys(t.chains)) {
				v.Chains = append(v.Chains, t.view(chain, prefix+name))
			}
		}
	}
	return v
}

func (t *table) view(chain, kind string) iptables.ChainView {
	v := iptables.ChainView{Name: chain, Type: kind, Rules: []iptables.RuleView{}}
	for _, j := range t.jumps {
		if j.target() == chain {
			v.Hook = strings.ToLower(j.chain)
		}
	}
	for _, r := range t.chains[chain] {
		v.Rules = append(v.Rules, iptables.RuleView{
			Rule: r.spec, Comment: r.comment(), Packets: r.counter.Packets, Bytes: r.counter.Bytes,
		})
	}
	return v
}
