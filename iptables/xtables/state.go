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

// state is what the tables of one family hold of ours, by table name. A table without anything of ours has an empty
// entry.
type state map[string]*table

type table struct {
	chains map[string][]rule
	jumps  []jump // from other chains to ours
	// used are our chains with foreign jumps to them. The kernel refuses to delete them.
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

// parse reads the output of iptables-save, with or without counters, or of Ruleset.RestoreText. It accepts any text; what it does not
// know counts as foreign. Ours are the chains with our names, whatever is in them, and jumps to them that are word for word the ones
// that we write.
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
			if ours(chain) {
				t.chains[chain] = nil
			}
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
		// An emptied chain with foreign jumps, which nobody can delete, is no longer ours.
		maps.DeleteFunc(t.chains, func(chain string, rules []rule) bool {
			return t.used[chain] && len(rules) == 0 && !slices.ContainsFunc(t.jumps, func(j jump) bool { return j.target() == chain })
		})
	}
	return s
}

// logicalLines yields the lines of a text, trimmed. A line break between quotes does not end a line.
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

// ownTables are the tables that our chains are in, in the order in which packets pass them.
func ownTables() []string { return []string{"raw", "mangle", "nat"} }

func ours(chain string) bool {
	return strings.HasPrefix(chain, iptables.ChainPrefix) && slices.Contains(iptables.RestoreChainNames(), chain)
}

// jump adds a jump to one of our chains. With other words than ours it is foreign.
func (t *table) jump(chain string, position int, r rule) {
	switch target := r.target(); {
	case !ours(target):
	case slices.Contains(hooks(), chain) && r.spec == iptables.RestoreJump(target):
		t.jumps = append(t.jumps, jump{chain: chain, position: position, rule: r})
	default:
		t.used[target] = true
	}
}

// hooks are the built-in chains with jumps to ours.
func hooks() []string { return []string{"PREROUTING", "INPUT", "OUTPUT"} }

// counted removes the "[packets:bytes]" that iptables-save -c prints in front.
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

// target returns where the rule jumps to, or "".
func (r rule) target() string {
	words := r.words()
	for i, w := range words[:max(0, len(words)-1)] {
		if w == "-j" || w == "-g" {
			return words[i+1]
		}
	}
	return ""
}

// comment returns the rule's comment, or "".
func (r rule) comment() string {
	words := r.words()
	if i := slices.Index(words, "--comment"); i >= 0 && i+1 < len(words) {
		return words[i+1]
	}
	return ""
}

// words splits a rule as iptables-restore does: quotes keep words together, a backslash makes the next character literal.
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

// names returns the tables that hold something of ours, in the order in which packets pass them.
func (s state) names() []string {
	return slices.DeleteFunc(ownTables(), func(name string) bool { return s.of(name).empty() })
}

// of returns a table, or an empty one if there is none.
func (s state) of(name string) *table {
	if t := s[name]; t != nil {
		return t
	}
	return &table{}
}

func (t *table) empty() bool { return len(t.chains) == 0 && len(t.jumps) == 0 }

// text returns what is ours in the form of RestoreText.
func (s state) text() string { return s.render(false) }

// listing returns the text with counters, in the form of iptables-save -c.
func (s state) listing() string { return s.render(true) }

func (s state) render(counters bool) string {
	var b strings.Builder
	for _, name := range s.names() {
		fmt.Fprintf(&b, "*%s\n%s%sCOMMIT\n", name, s[name].head(), s[name].lines(counters))
	}
	return b.String()
}

// head returns the declarations of the chains.
func (t *table) head() string {
	var b strings.Builder
	for _, chain := range slices.Sorted(maps.Keys(t.chains)) {
		fmt.Fprintf(&b, ":%s - [0:0]\n", chain)
	}
	return b.String()
}

// body returns the jumps and the rules.
func (t *table) body() string { return t.lines(false) }

func (t *table) lines(counters bool) string {
	prefix := func(r rule) string {
		if !counters {
			return ""
		}
		return fmt.Sprintf("[%d:%d] ", r.counter.Packets, r.counter.Bytes)
	}
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

// sortedJumps returns the jumps in an order in which inserting them one by one gives each its position.
func (t *table) sortedJumps() []jump {
	return slices.SortedStableFunc(slices.Values(t.jumps), func(a, b jump) int {
		return cmp.Or(cmp.Compare(slices.Index(hooks(), a.chain), slices.Index(hooks(), b.chain)), cmp.Compare(a.position, b.position))
	})
}
