package iptables

import (
	"slices"
	"strings"
)

// Drift is how the kernel's state differs from what it should be, one line for each difference: "- " is missing, "+ " is too
// much. Empty means no drift.
type Drift []string

// String returns one line for each difference.
func (d Drift) String() string { return strings.Join(d, "\n") }

// Diff compares two Rulesets without counters. Loopback addresses that only have contains are no drift: they may be somebody else's.
func Diff(want, have Ruleset) Drift {
	var d Drift
	for _, p := range want.Loopback {
		if !slices.Contains(have.Loopback, p) {
			d = append(d, "- address "+p.String()+" on lo")
		}
	}
	for _, p := range want.Routing {
		if !slices.Contains(have.Routing, p) {
			d = append(d, "- "+p.String())
		}
	}
	for _, p := range have.Routing {
		if !slices.Contains(want.Routing, p) {
			d = append(d, "+ "+p.String())
		}
	}
	want.Loopback, have.Loopback, want.Routing, have.Routing = nil, nil, nil, nil
	w, h := lines(want), lines(have)
	if slices.Equal(w, h) {
		return d
	}
	return append(d, lineDiff(w, h)...)
}

func lines(r Ruleset) []string {
	return strings.Split(strings.TrimSpace(r.NftText(TextOptions{})), "\n")
}

// lineDiff removes what both have at head and tail and returns the rest: rules are few and change in one place.
func lineDiff(want, have []string) Drift {
	for len(want) > 0 && len(have) > 0 && want[0] == have[0] {
		want, have = want[1:], have[1:]
	}
	for len(want) > 0 && len(have) > 0 && want[len(want)-1] == have[len(have)-1] {
		want, have = want[:len(want)-1], have[:len(have)-1]
	}
	var d Drift
	for _, l := range want {
		d = append(d, "- "+strings.TrimSpace(l))
	}
	for _, l := range have {
		d = append(d, "+ "+strings.TrimSpace(l))
	}
	return d
}
