package xtables

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"istio-pod-network-controller/iptables"
)

// change is one run of a restore program: its input, which may be empty, and the tables that we made and do not need any more.
type change struct {
	input string
	spare []string
}

// plan computes what makes have into want. It is a block for each table that differs, and every block is one transaction:
//
//   - our chains are declared, which empties them; one that is new comes into being;
//   - jumps that are not where they belong are taken out, and put in;
//   - the chains are filled;
//   - chains that are not wanted any more go; one that others' rules lead to stays, empty.
//
// Nothing of others is named. The order of the tables makes what captures a connection from now on come before what has
// captured it up to now goes: first tables that gain a chain, last those that lose one. With mark, a table that is not
// there yet gets a sign that we made it.
func plan(have, want state, mark bool) change {
	var c change
	for _, name := range affected(have, want) {
		h, w := have.of(name), want.of(name)
		if h.made && w.empty() {
			c.spare = append(c.spare, name)
		}
		block := h.become(w)
		if have[name] == nil && mark {
			block = fmt.Sprintf(":%s - [0:0]\n", madeTable) + block
		}
		if block != "" {
			c.input += fmt.Sprintf("*%s\n%sCOMMIT\n", name, block)
		}
	}
	return c
}

// become is the transaction that makes a table what want is.
func (t *table) become(want *table) string {
	stale := t.without(want)
	declared := &table{chains: maps.Clone(want.chains)}
	for _, chain := range stale {
		declared.insert(chain)
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

func (t *table) insert(chain string) {
	if t.chains == nil {
		t.chains = map[string][]rule{}
	}
	t.chains[chain] = nil
}

// affected are the tables that differ, in the order in which they are to change.
func affected(have, want state) []string {
	names := slices.Compact(slices.Sorted(slices.Values(slices.Concat(have.names(), want.names()))))
	names = slices.DeleteFunc(names, func(name string) bool { return have.of(name).equal(want.of(name)) })
	rank := func(name string) int {
		h, w := have.of(name), want.of(name)
		switch {
		case len(h.without(w)) > 0:
			return 1
		case len(w.without(h)) > 0:
			return -1
		}
		return 0
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(rank(a), rank(b)) })
	return names
}

// equal reports whether two tables hold the same, whoever made them; a table of our making that we do not need is not equal to
// none.
func (t *table) equal(o *table) bool {
	return t.head()+t.body() == o.head()+o.body() && (!t.made || !o.empty())
}

// without gives the chains that o does not have.
func (t *table) without(o *table) []string {
	var out []string
	for _, chain := range slices.Sorted(maps.Keys(t.chains)) {
		if _, ok := o.chains[chain]; !ok {
			out = append(out, chain)
		}
	}
	return out
}

// replaceJumps takes out our jumps and puts in those of want, unless they are there already.
func (t *table) replaceJumps(want *table) string {
	have, wanted := table{jumps: t.jumps}, table{jumps: want.jumps}
	if have.body() == wanted.body() {
		return ""
	}
	var b strings.Builder
	for _, j := range t.jumps {
		// By what it says and not by its number: whatever others do meanwhile, their rules are not the ones that go. What it says
		// is ours: parse takes no other jump.
		fmt.Fprintf(&b, "-D %s %s\n", j.chain, iptables.RestoreJump(j.target()))
	}
	b.WriteString(wanted.body())
	return b.String()
}
