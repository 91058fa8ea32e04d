package iptables

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// ChainPrefix starts the name of each of our chains in the tables of iptables.
const ChainPrefix = "PODNET_"

// RestoreChainNames returns the names in iptables of all chains that any Ruleset may have.
func RestoreChainNames() []string {
	var names []string
	for _, name := range ChainNames() {
		names = append(names, Chain{Name: name}.restoreName())
	}
	return names
}

// CapturesNothing reports whether the chain with a name in iptables captures nothing: see reused.
func CapturesNothing(chain string) bool {
	return slices.ContainsFunc([]string{chainReusedIn, chainReusedOut, chainLostIn, chainLostOut, chainHold}, func(name string) bool {
		return Chain{Name: name}.restoreName() == chain
	})
}

// RestoreJump returns the rule, without its chain, that jumps from a built-in chain to one of ours.
func RestoreJump(chain string) string { return "-m comment --comment " + TableName + " -j " + chain }

// RestoreText renders the rules of one family (IPv4 or IPv6) for `iptables-restore --noflush`, one block for each table: declarations
// of our chains, which empty them, our jumps at the head of the built-in chains, and the rules as iptables-save prints them. No
// built-in chain is declared, so the rules of others stay.
func (r Ruleset) RestoreText(family uint32) string {
	var b strings.Builder
	for _, table := range []string{"raw", "mangle", "nat"} {
		var chains []restoreChain
		for _, c := range r.Chains {
			if c.restoreTable() != table {
				continue
			}
			if specs := restoreSpecs(r.Sets, c, family); len(specs) > 0 {
				chains = append(chains, restoreChain{name: c.restoreName(), hook: c.Hook, specs: specs})
			}
		}
		slices.SortFunc(chains, func(a, b restoreChain) int { return cmp.Compare(a.name, b.name) })
		writeTable(&b, table, chains)
	}
	return b.String()
}

// restoreChain is a chain in iptables for one family.
type restoreChain struct {
	name  string
	hook  Hook
	specs []string
}

func writeTable(b *strings.Builder, table string, chains []restoreChain) {
	if len(chains) == 0 {
		return
	}
	fmt.Fprintf(b, "*%s\n", table)
	for _, c := range chains {
		fmt.Fprintf(b, ":%s - [0:0]\n", c.name)
	}
	for _, hook := range []Hook{Prerouting, Input, Output} {
		position := 0
		for _, c := range chains {
			if c.hook == hook {
				position++
				fmt.Fprintf(b, "-I %s %d %s\n", strings.ToUpper(string(hook)), position, RestoreJump(c.name))
			}
		}
	}
	for _, c := range chains {
		for _, spec := range c.specs {
			fmt.Fprintf(b, "-A %s %s\n", c.name, spec)
		}
	}
	b.WriteString("COMMIT\n")
}

// restoreTable returns the table of iptables that runs at the chain's place.
func (c Chain) restoreTable() string {
	switch {
	case c.Type == NAT:
		return "nat"
	case c.Priority <= rawPriority:
		return "raw"
	}
	return "mangle"
}

// restoreName returns the chain's name in iptables, which allows at most 28 characters.
func (c Chain) restoreName() string {
	return ChainPrefix + strings.ToUpper(strings.ReplaceAll(c.Name, "-", "_"))
}

// restoreSpecs returns the chain's rules for a family. One rule of the Ruleset may become several, or none.
func restoreSpecs(sets []Set, c Chain, family uint32) []string {
	var out []string
	for _, rule := range c.Rules {
		if everything(rule, family) {
			break // no packet of the family reaches the later rules, and this rule itself has no effect
		}
		for _, match := range restoreMatches(sets, rule.Conds, family) {
			for _, target := range rule.Action.restoreTargets(family) {
				out = append(out, strings.TrimLeft(fmt.Sprintf("%s -m comment --comment %s %s %s", match, Quoted(rule.Comment), rule.Action.restoreOption(), target), " "))
			}
		}
	}
	return out
}

// everything reports whether the rule returns for all packets of a family.
func everything(r Rule, family uint32) bool {
	return r.Action.Verb == Return && slices.Equal(r.Conds, []Cond{num(Family, family)})
}

// restoreTargets returns the targets for an action. If a target of iptables does not end the chain, a second rule with the same match
// does.
func (a Action) restoreTargets(family uint32) []string {
	set := func(mark uint32) string { return fmt.Sprintf("MARK --set-xmark %#x/0xffffffff", mark) }
	connmark := func(what string) string {
		return "CONNMARK --" + what + "-mark --nfmask 0xffffffff --ctmask 0xffffffff"
	}
	const decide = "RETURN"
	switch a.Verb {
	case Redirect:
		return []string{fmt.Sprintf("REDIRECT --to-ports %d", a.Port)}
	case Drop:
		return []string{"DROP"}
	case SetMark:
		return []string{set(a.Num)}
	case Divert:
		return []string{set(a.Num), "ACCEPT"}
	case TProxy:
		own := map[uint32]string{IPv4: "0.0.0.0", IPv6: "::"}[family] // the packet's own address
		return []string{fmt.Sprintf("TPROXY --on-port %d --on-ip %s --tproxy-mark %#x/0xffffffff", a.Port, own, a.Num)}
	case SaveMark:
		return []string{connmark("save"), decide}
	case RestoreMark:
		return []string{connmark("restore"), decide}
	case Zone:
		return []string{fmt.Sprintf("CT --zone %d", a.Num), decide}
	case ZoneOneWay:
		return []string{fmt.Sprintf("CT --zone-orig %d", a.Num), decide}
	case Jump, Goto:
		return []string{Chain{Name: a.Chain}.restoreName()}
	case Return:
	}
	return []string{decide}
}

// restoreOption returns the option that names the action's target.
func (a Action) restoreOption() string {
	if a.Verb == Goto {
		return "-g"
	}
	return "-j"
}

// Quoted returns a comment as iptables-save prints it: without quotes if possible.
func Quoted(s string) string {
	plain := func(r rune) bool {
		return r == '_' || r == '-' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
	}
	if s != "" && strings.TrimLeftFunc(s, plain) == "" {
		return s
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, `'`, `\'`).Replace(s) + `"`
}

// TextDrift returns how two texts differ, one line for each difference.
func TextDrift(want, have string) Drift {
	if want == have {
		return nil
	}
	split := func(s string) []string { return strings.FieldsFunc(s, func(r rune) bool { return r == '\n' }) }
	missing, more, _ := Trimmed(split(want), split(have))
	d := append(signed(KindRules, "- ", missing), signed(KindRules, "+ ", more)...)
	for i := range d {
		if !strings.HasPrefix(d[i].Text[2:], "-") { // a table or a chain, no rule
			d[i].Kind = KindTable
		}
	}
	return d
}
