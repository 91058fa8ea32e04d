package foreign

import (
	"errors"
	"fmt"
	"slices"
)

// Bounds of the rules that are read in chains before ours, and of the chains that such rules lead to.
const (
	maxReached   = 1024
	maxRuleBytes = 2 << 20
)

// errTooMany means that there are more rules, or chains that rules lead to, than are read.
var errTooMany = fmt.Errorf("has more rules than are read (%d)", maxRules)

// chainRules is what is read of a chain: what its rules do, and the chains that they lead to.
type chainRules[K comparable] struct {
	action
	jumps []K
}

// follow returns what a built-in or base chain, or a chain that it leads to, may do to packets of ours, in words: the first that does anything. "" is
// nothing. read reads a chain, name returns what it is called unless it is the first one.
func follow[K comparable](first K, read func(K) (chainRules[K], error), name func(K) string) (words string, err error) {
	at := map[K]bool{first: true}
	for queue := []K{first}; len(queue) > 0; queue = queue[1:] {
		f, err := read(queue[0])
		switch {
		case errors.Is(err, errTooMany):
			return err.Error(), nil
		case err != nil:
			return "", err
		case !f.nothing() && name(queue[0]) != "":
			return f.String() + " in chain " + name(queue[0]), nil
		case !f.nothing():
			return f.String(), nil
		}
		for _, chain := range f.jumps {
			if !at[chain] {
				at[chain] = true
				queue = append(queue, chain)
			}
		}
	}
	return "", nil
}

// chainAt is a chain of nf_tables as packets of ours see it: at hook output, or where they come in.
type chainAt struct {
	family       byte
	table, chain string
	out          bool
}

// rulesReader reads rules of nf_tables, each chain once for each direction.
type rulesReader struct {
	native
	ours  packets
	seen  map[chainAt]chainRules[chainAt]
	count int
	bytes int
}

// does returns what a base chain may do to packets of ours. own are names of our chains, which are not followed.
func (r *rulesReader) does(base chainAt, own []string) (string, error) {
	read := func(at chainAt) (chainRules[chainAt], error) { return r.read(at, own) }
	return follow(base, read, func(at chainAt) string {
		if at == base {
			return ""
		}
		return at.chain
	})
}

// read reads a chain, up to the first rule that does anything, or that ends the chain.
func (r *rulesReader) read(at chainAt, own []string) (f chainRules[chainAt], err error) {
	if f, ok := r.seen[at]; ok {
		return f, nil
	}
	if len(r.seen) >= maxReached || r.tooMany() {
		return f, errTooMany
	}
	ours := r.ours
	ours.out = at.out
	err = r.rules(at.family, at.table, at.chain, func(rule nftRule) bool {
		r.count++
		r.bytes += rule.size
		if rule.chain != at.chain {
			return !r.tooMany()
		}
		read := readRule(ours, at.family, rule.expressions)
		if f.action = read.action; read.jump.is && !slices.Contains(own, read.jump.chain) {
			to := at
			to.chain = read.jump.chain
			f.jumps = append(f.jumps, to)
		}
		return f.nothing() && !read.endsChain() && !r.tooMany()
	})
	if err == nil && f.nothing() && r.tooMany() {
		err = errTooMany
	}
	if err == nil {
		r.seen[at] = f
	}
	return f, err
}

func (r *rulesReader) tooMany() bool { return r.count > maxRules || r.bytes > maxRuleBytes }
