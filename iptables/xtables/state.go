package xtables

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"

	"istio-pod-network-controller/iptables"
)

// madeTable is an empty chain that we leave in a table which was not there before us, so that removal, whoever does it,
// knows that the table may go, too.
const madeTable = iptables.ChainPrefix + "MADE_TABLE"

// state is what the tables of one family hold, as far as it is ours: by the name of the table. A table of which nothing is
// ours is there, but empty.
type state map[string]*table

type table struct {
	chains map[string][]rule // all of ours, but madeTable
	jumps  []jump            // to our chains, from those of others
	made   bool
	// used are chains of ours that rules of others lead to. The kernel refuses their deletion.
	used map[string]bool
}

type rule struct {
	spec    string
	counter iptables.Counter
}

type jump struct {
	chain    string
	position int
	rule
}

// parse reads what iptables-save prints, with counters or without, or what Ruleset.RestoreText gives. It takes any text: what
// it does not know is others'. Ours are chains of our names, with whatever is in them, and jumps to them that are word by
// word those that we write.
func parse(text string) state {
	s := state{}
	var t *table
	var seen map[string]int // rules of the built-in chains
	for line := range logicalLines(text) {
		if name, ok := strings.CutPrefix(line, "*"); ok {
			t, seen = &table{chains: map[string][]rule{}, used: map[string]bool{}}, map[string]int{}
			if slices.Contains(ownTables(), name) {
				s[name] = t
			}
		}
		if t == nil {
			continue
		}
		if chain, ok := strings.CutPrefix(line, ":"); ok {
			chain, _, _ = strings.Cut(chain, " ")
			t.declare(chain)
			continue
		}
		r, rest := counted(line)
		verb, rest, _ := strings.Cut(rest, " ")
		chain, spec, _ := strings.Cut(rest, " ")
		r.spec = spec
		switch {
		case verb == "-A" && ours(chain):
			t.chains[chain] = append(t.chains[chain], r)
		case verb == "-A":
			seen[chain]++
			t.jump(chain, seen[chain], r)
		case verb == "-I":
			position, spec, _ := strings.Cut(spec, " ")
			r.spec = spec
			n, _ := strconv.Atoi(position)
			t.jump(chain, n, r)
		}
	}
	for _, t := range s {
		// What we have emptied and may not delete is others' now.
		maps.DeleteFunc(t.chains, func(chain string, rules []rule) bool {
			return t.used[chain] && len(rules) == 0 && !slices.ContainsFunc(t.jumps, func(j jump) bool { return j.target() == chain })
		})
	}
	return s
}

// logicalLines gives the lines of a text, trimmed; a line break between quotes does not end one.
func logicalLines(text string) iter.Seq[string] {
	return func(yield func(string) bool) {
		quoted, escaped, start := false, false, 0
		for i := range len(text) {
			switch c := text[i]; {
			case escaped:
				escaped = false
			case c == '\\':
				escaped = true
			case c == '"':
				quoted = !quoted
			case c == '\n' && !quoted:
				if !yield(strings.TrimSpace(text[start:i])) {
					return
				}
				start = i + 1
			}
		}
		yield(strings.TrimSpace(text[start:]))
	}
}

// ownTables are the tables that chains of ours stand in, in the order in which packets pass them.
func ownTables() []string { return []string{"raw", "mangle", "nat"} }

func ours(chain string) bool {
	return strings.HasPrefix(chain, iptables.ChainPrefix) && slices.Contains(iptables.RestoreChainNames(), chain)
}

func (t *table) declare(chain string) {
	switch {
	case chain == madeTable:
		t.made = true
	case ours(chain):
		t.chains[chain] = nil
	}
}

// jump takes a jump of ours. One that another has written, from wherever, is theirs.
func (t *table) jump(chain string, position int, r rule) {
	switch target := r.target(); {
	case !ours(target):
	case slices.Contains(hooks(), chain) && r.spec == iptables.RestoreJump(target):
		t.jumps = append(t.jumps, jump{chain: chain, position: position, rule: r})
	default:
		t.used[target] = true
	}
}

// hooks are the built-in chains that ours are jumped to from.
func hooks() []string { return []string{"PREROUTING", "OUTPUT"} }

// counted takes the "[packets:bytes]" off that iptables-save -c puts in front.
func counted(line string) (rule, string) {
	var r rule
	if counter, rest, ok := strings.Cut(line, "] "); ok && strings.HasPrefix(line, "[") {
		packets, bytes, _ := strings.Cut(counter[1:], ":")
		r.counter.Packets, _ = strconv.ParseUint(packets, 10, 64)
		r.counter.Bytes, _ = strconv.ParseUint(bytes, 10, 64)
		line = rest
	}
	return r, line
}

// target is where the rule sends a packet, or "".
func (r rule) target() string {
	words := r.words()
	for i, w := range words[:max(0, len(words)-1)] {
		if w == "-j" || w == "-g" {
			return words[i+1]
		}
	}
	return ""
}

// comment is the rule's comment.
func (r rule) comment() string {
	words := r.words()
	if i := slices.Index(words, "--comment"); i >= 0 && i+1 < len(words) {
		return words[i+1]
	}
	return ""
}

// words splits a rule as iptables-restore does: quotes hold words together, a backslash takes what follows as it is.
func (r rule) words() []string {
	var words []string
	var word strings.Builder
	quoted, escaped, begun := false, false, false
	for _, c := range r.spec {
		switch {
		case escaped:
			word.WriteRune(c)
			escaped, begun = false, true
		case c == '\\':
			escaped = true
		case c == '"':
			quoted, begun = !quoted, true
		case c == ' ' && !quoted:
			if begun {
				words = append(words, word.String())
			}
			word.Reset()
			begun = false
		default:
			word.WriteRune(c)
			begun = true
		}
	}
	if begun {
		words = append(words, word.String())
	}
	return words
}

// names are the tables that hold something of ours, in the order in which packets pass them.
func (s state) names() []string {
	return slices.DeleteFunc(ownTables(), func(name string) bool { return s.of(name).empty() })
}

// of is a table, empty where there is none.
func (s state) of(name string) *table {
	if t := s[name]; t != nil {
		return t
	}
	return &table{}
}

func (t *table) empty() bool { return len(t.chains) == 0 && len(t.jumps) == 0 && !t.made }

// text is what is ours as RestoreText would have it.
func (s state) text() string { return s.render((*table).body) }

// listing is the text with counters, as iptables-save -c has it.
func (s state) listing() string { return s.render((*table).countedBody) }

func (s state) render(body func(*table) string) string {
	var b strings.Builder
	for _, name := range s.names() {
		if t := s[name]; len(t.chains)+len(t.jumps) > 0 {
			fmt.Fprintf(&b, "*%s\n%s%sCOMMIT\n", name, t.head(), body(t))
		}
	}
	return b.String()
}

// head declares the chains.
func (t *table) head() string {
	var b strings.Builder
	for _, chain := range slices.Sorted(maps.Keys(t.chains)) {
		fmt.Fprintf(&b, ":%s - [0:0]\n", chain)
	}
	return b.String()
}

// body has the jumps and the rules.
func (t *table) body() string { return t.lines(func(rule) string { return "" }) }

func (t *table) countedBody() string {
	return t.lines(func(r rule) string { return fmt.Sprintf("[%d:%d] ", r.counter.Packets, r.counter.Bytes) })
}

func (t *table) lines(prefix func(rule) string) string {
	var b strings.Builder
	for _, j := range t.sortedJumps() {
		fmt.Fprintf(&b, "%s-I %s %d %s\n", prefix(j.rule), j.chain, j.position, j.spec)
	}
	for _, chain := range slices.Sorted(maps.Keys(t.chains)) {
		for _, r := range t.chains[chain] {
			fmt.Fprintf(&b, "%s-A %s %s\n", prefix(r), chain, r.spec)
		}
	}
	return b.String()
}

// sortedJumps stand in an order in which inserting them one by one gives each its position.
func (t *table) sortedJumps() []jump {
	return slices.SortedStableFunc(slices.Values(t.jumps), func(a, b jump) int {
		return cmp.Or(
			cmp.Compare(slices.Index(hooks(), a.chain), slices.Index(hooks(), b.chain)),
			cmp.Compare(a.chain, b.chain), cmp.Compare(a.position, b.position),
		)
	})
}
