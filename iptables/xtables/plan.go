package xtables

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"istio-pod-network-controller/iptables"
)

// plan returns the input of a restore program, which may be empty, by which have becomes want. It has a block for each table that differs,
// and each block is one transaction:
//
//   - our chains are declared, which makes new ones and empties the others;
//   - jumps that are not in their place are deleted and inserted again;
//   - the chains are filled;
//   - unwanted chains are deleted; a chain that foreign rules jump to stays, empty.
//
// Foreign rules are never named. Tables that gain a chain change first, tables that lose one last: connections are captured at every
// moment in between.
func plan(have, want state) (input string) {
	for _, name := range affected(have, want) {
		input += fmt.Sprintf("*%s\n%sCOMMIT\n", name, have.of(name).become(want.of(name)))
	}
	return input
}

// become returns the transaction that makes the table what want is.
func (t *table) become(want *table) string {
	stale := t.without(want)
	declared := &table{chains: map[string][]rule{}}
	for _, chain := range slices.Concat(stale, slices.Collect(maps.Keys(want.chains))) {
		declared.chains[chain] = nil
	}
	var b strings.Builder
	b.WriteString(declared.head() + t.replaceJumps(want) + (&table{chains: want.chains}).body())
	for _, chain := range stale {
		if !t.used[chain] {
			fmt.Fprintf(&b, "-X %s\n", chain)
		}
	}
	return b.String()
}

// affected returns the tables that differ, in the order in which they have to change.
func affected(have, want state) []string {
	names := slices.Compact(slices.Sorted(slices.Values(slices.Concat(have.names(), want.names()))))
	names = slices.DeleteFunc(names, func(name string) bool { return have.of(name).equal(want.of(name)) })
	rank := func(name string) int {
		h, w := have.of(name), want.of(name)
		switch {
		case loses(h, w):
			return 1
		case loses(w, h):
			return -1
		}
		return 0
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(rank(a), rank(b)) })
	return names
}

// loses reports whether a chain that captures is in have and not in want.
func loses(have, want *table) bool {
	return slices.ContainsFunc(have.without(want), func(chain string) bool { return !iptables.CapturesNothing(chain) })
}

func (t *table) equal(o *table) bool { return t.head()+t.body() == o.head()+o.body() }

// without returns the chains that o does not have.
func (t *table) without(o *table) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(t.chains)), func(chain string) bool {
		_, has := o.chains[chain]
		return has
	})
}

// replaceJumps deletes our jumps and inserts the jumps of want, unless they are equal.
func (t *table) replaceJumps(want *table) string {
	have, wanted := table{jumps: t.jumps}, table{jumps: want.jumps}
	if have.body() == wanted.body() {
		return ""
	}
	var b strings.Builder
	for _, j := range t.jumps {
		// The rule is named by its text and not by its number: so no foreign rule can be deleted, whatever changes at the same time. The
		// text is ours: parse accepts no other jump.
		fmt.Fprintf(&b, "-D %s %s\n", j.chain, iptables.RestoreJump(j.target()))
	}
	b.WriteString(wanted.body())
	return b.String()
}
