package foreign

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/rawnetlink"
)

// Bounds of the rules that are read in chains before ours, and of the chains that such rules lead to.
const (
	maxReached   = 1024
	maxRuleBytes = 2 << 20
)

// chainAt is a chain of nf_tables as packets of ours see it: at hook output, or where they come in.
type chainAt struct {
	family       byte
	table, chain string
	out          bool
}

// chainRules is what is read of a chain.
type chainRules struct {
	action
	jumps []string
}

// rulesReader reads rules of nf_tables, each chain once for each direction.
type rulesReader struct {
	conn  *rawnetlink.Conn
	end   time.Time
	ours  packets
	own   []string // our chains, which are not followed
	seen  map[chainAt]chainRules
	rules int
	bytes int
}

// errTooMany means that there are more rules, or chains that rules lead to, than are read.
var errTooMany = fmt.Errorf("has more rules than are read (%d)", maxRules)

// does returns what a base chain, or a chain that it leads to, may do to packets of ours, in words: the first that does anything. "" is nothing.
func (r *rulesReader) does(base chainAt) (words string, err error) {
	at := map[string]bool{base.chain: true}
	queue := []string{base.chain}
	for len(queue) > 0 {
		next := base
		next.chain, queue = queue[0], queue[1:]
		f, err := r.read(next)
		switch {
		case errors.Is(err, errTooMany):
			return err.Error(), nil
		case err != nil:
			return "", err
		case !f.nothing() && next.chain == base.chain:
			return f.String(), nil
		case !f.nothing():
			return f.String() + " in chain " + next.chain, nil
		}
		for _, name := range f.jumps {
			if !at[name] && !slices.Contains(r.own, name) {
				at[name] = true
				queue = append(queue, name)
			}
		}
	}
	return "", nil
}

// read reads a chain, up to the first rule that does anything, or that ends the chain.
func (r *rulesReader) read(at chainAt) (f chainRules, err error) {
	if f, ok := r.seen[at]; ok {
		return f, nil
	}
	if len(r.seen) >= maxReached || r.tooMany() {
		return f, errTooMany
	}
	ours := r.ours
	ours.out = at.out
	request := get(unix.NFT_MSG_GETRULE, family{number: at.family}, rawnetlink.Text(unix.NFTA_RULE_TABLE, at.table), rawnetlink.Text(unix.NFTA_RULE_CHAIN, at.chain))
	err = r.conn.Dump(r.end, request, func(body []byte) bool {
		r.rules++
		r.bytes += len(body)
		rule := rawnetlink.Attributes(rawnetlink.Object(body))
		if rawnetlink.Name(rule[unix.NFTA_RULE_CHAIN]) != at.chain { // a kernel that returns all rules of the table
			return !r.tooMany()
		}
		read := readRule(ours, at.family, rule[unix.NFTA_RULE_EXPRESSIONS])
		if f.action = read.action; read.jump.is {
			f.jumps = append(f.jumps, read.jump.chain)
		}
		return f.nothing() && !read.endsChain() && !r.tooMany()
	})
	switch {
	case errors.Is(err, unix.ENOENT): // it has gone
		err = nil
	case err == nil && f.nothing() && r.tooMany():
		err = errTooMany
	}
	if err == nil {
		r.seen[at] = f
	}
	return f, err
}

func (r *rulesReader) tooMany() bool { return r.rules > maxRules || r.bytes > maxRuleBytes }
