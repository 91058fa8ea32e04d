package iptables

import (
	"slices"
	"strings"
)

// Diff compares two Rulesets without counters. Loopback addresses that only have contains are no drift: they may be somebody else's.
func Diff(want, have Ruleset) Drift {
	var d Drift
	for _, p := range want.Loopback {
		if !slices.Contains(have.Loopback, p) {
			d = append(d, Difference{KindAddress, "- address " + p.String() + " on lo"})
		}
	}
	for _, p := range want.Routing {
		if !slices.Contains(have.Routing, p) {
			d = append(d, Difference{KindRoute, "- " + p.String()})
		}
	}
	for _, p := range have.Routing {
		if !slices.Contains(want.Routing, p) {
			d = append(d, Difference{KindRoute, "+ " + p.String()})
		}
	}
	return append(d, diffSections(sections(want), sections(have))...)
}

// section is a set or a chain as text: its declaration, and its content line by line.
type section struct {
	name, declaration string
	content           []string
	kind              Kind // of the declaration
	contentKind       Kind
}

func sections(r Ruleset) (out []section) {
	for _, s := range r.Sets {
		out = append(out, section{
			name: "set " + s.Name, declaration: "set " + s.Name, content: strings.Split(strings.TrimSpace(s.body()), "\n"),
			kind: KindSets, contentKind: KindSets,
		})
	}
	for _, c := range r.Chains {
		s := section{name: "chain " + c.Name, declaration: c.declaration(), kind: KindTable, contentKind: KindRules}
		for _, rule := range c.Rules {
			s.content = append(s.content, rule.Text())
		}
		out = append(out, s)
	}
	return out
}

func (s section) lines(sign string) Drift {
	return append(Drift{{s.kind, sign + s.declaration}}, signed(s.contentKind, sign, s.content)...)
}

// diffSections compares sections of the same name, whatever their order.
func diffSections(want, have []section) (d Drift) {
	for _, w := range want {
		i := slices.IndexFunc(have, func(h section) bool { return h.name == w.name })
		if i < 0 {
			d = append(d, w.lines("- ")...)
			continue
		}
		h := have[i]
		have = slices.Delete(slices.Clone(have), i, i+1)
		if w.declaration != h.declaration {
			d = append(d, Difference{w.kind, "- " + w.declaration}, Difference{w.kind, "+ " + h.declaration})
		}
		missing, more := trimmed(w.content, h.content)
		d = append(append(d, signed(w.contentKind, "- ", missing)...), signed(w.contentKind, "+ ", more)...)
	}
	for _, h := range have {
		d = append(d, h.lines("+ ")...)
	}
	return d
}

func signed(kind Kind, sign string, lines []string) (d Drift) {
	for _, l := range lines {
		d = append(d, Difference{kind, sign + strings.TrimSpace(l)})
	}
	return d
}

// trimmed removes what both have at head and tail: rules are few and change in one place.
func trimmed(want, have []string) (missing, more []string) {
	for len(want) > 0 && len(have) > 0 && want[0] == have[0] {
		want, have = want[1:], have[1:]
	}
	for len(want) > 0 && len(have) > 0 && want[len(want)-1] == have[len(have)-1] {
		want, have = want[:len(want)-1], have[:len(have)-1]
	}
	return want, have
}
