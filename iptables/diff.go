package iptables

import (
	"slices"
	"strings"
)

// Diff compares the addresses and routes of two Rulesets. Loopback addresses that only have contains are no drift: they may be somebody else's.
func Diff(want, have Ruleset) (d Drift) {
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
