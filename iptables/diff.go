package iptables

import "strings"

// Diff compares the address and the routes of two Rulesets. An address of have alone is no drift: it may be somebody else's.
func Diff(want, have Ruleset) (d Drift) {
	if want.Loopback && !have.Loopback {
		d = append(d, Difference{KindAddress, "- address " + LoopbackAddr().String() + " on lo"})
	}
	switch {
	case want.Routing && !have.Routing:
		d = append(d, Difference{KindRoute, "- " + routeCommands})
	case have.Routing && !want.Routing:
		d = append(d, Difference{KindRoute, "+ " + routeCommands})
	}
	if want.Routing && have.Unsourced {
		d = append(d, Difference{KindRoute, "- net.ipv4.conf.all.accept_local=1, without which src_valid_mark=1 drops what comes in"})
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
