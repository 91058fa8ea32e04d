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
	b.WriteString(routes.Comments())
	names := families()
	for _, family := range slices.Sorted(maps.Keys(names)) {
		fmt.Fprintf(&b, "# %s-restore --noflush\n%s", names[family], rules(family))
	}
	return b.String()
}

// shown returns the rules of both families for machines to read, and one by one for people; comments stand beside them. The type of a chain is its
// family and table, as nftables names them.
func (s snapshot) shown(routes iptables.Ruleset) (v iptables.View, lines []iptables.Line) {
	v = routes.View()
	for _, family := range slices.Sorted(maps.Keys(s)) {
		kind := map[uint32]string{iptables.IPv4: "ip ", iptables.IPv6: "ip6 "}[family]
		for _, name := range s[family].names() {
			t := s[family][name]
			for _, chain := range slices.Sorted(maps.Keys(t.chains)) {
				c := iptables.ChainView{Name: chain, Type: kind + name, Rules: []iptables.RuleView{}}
				if i := slices.IndexFunc(t.jumps, func(j jump) bool { return j.target() == chain }); i >= 0 {
					c.Hook = strings.ToLower(t.jumps[i].chain)
				}
				for _, r := range t.chains[chain] {
					comment := r.comment()
					bare := strings.Replace(r.spec, "-m comment --comment "+iptables.Quoted(comment)+" ", "", 1)
					c.Rules = append(c.Rules, iptables.RuleView{Rule: r.spec, Comment: comment, Packets: r.counter.Packets, Bytes: r.counter.Bytes})
					lines = append(lines, iptables.NativeLine(chain, families()[family]+" "+bare, comment, r.counter))
				}
				v.Chains = append(v.Chains, c)
			}
		}
	}
	return v, lines
}
