package pairs

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
)

// Row has an alternative, by its number, for each parameter that is chosen so far, by its path.
type Row map[string]int

// Pair is two parameters with an alternative each.
type Pair struct {
	One, Other    string
	First, Second int
}

// At is a value by its path.
type At = func(path string) any

// Rule says which values the chart refuses together, and words of its error.
type Rule struct {
	Says    string
	Refuses func(At) bool
}

// Cover is the state of the search: greedy, with a fixed seed, so that all runs give the same rows.
//
//   - A row starts with a pair that is not covered yet.
//   - The other parameters follow in random order. Each takes the alternative that covers most new pairs and breaks no rule.
//   - A row that finds no such alternative is begun again in another order. A pair that never fits is left over: some rule refuses it.
type Cover struct {
	parameters []Parameter
	byPath     map[string]Parameter
	rules      []Rule
	open       map[Pair]bool
	random     *rand.Rand
}

// New returns a search over parameters, of which each has at least one alternative.
func New(parameters []Parameter, rules []Rule) *Cover {
	parameters = slices.SortedFunc(slices.Values(parameters), func(a, b Parameter) int { return strings.Compare(a.Path, b.Path) })
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same rows every time
	c := &Cover{parameters: parameters, rules: rules, byPath: map[string]Parameter{}, open: map[Pair]bool{}, random: random}
	for _, p := range parameters {
		c.byPath[p.Path] = p
	}
	for _, pair := range c.pairs() {
		c.open[pair] = true
	}
	return c
}

// pairs are all pairs, always in the same order.
func (c *Cover) pairs() []Pair {
	var all []Pair
	for i, one := range c.parameters {
		for _, other := range c.parameters[i+1:] {
			for first := range one.Alternatives {
				for second := range other.Alternatives {
					all = append(all, Pair{one.Path, other.Path, first, second})
				}
			}
		}
	}
	return all
}

// attempts is how often a row is begun again before its first pair is given up.
const attempts = 20

// Rows returns the rows, and the pairs that fit into none.
func (c *Cover) Rows() (rows []Row, left []Pair) {
	for _, pair := range c.pairs() {
		if !c.open[pair] {
			continue
		}
		if row := c.row(pair); row != nil {
			rows = append(rows, row)
			c.close(row)
		} else {
			left = append(left, pair)
		}
	}
	return rows, left
}

func (c *Cover) row(pair Pair) Row {
	for range attempts {
		row := Row{pair.One: pair.First, pair.Other: pair.Second}
		if c.Refusal(row) != nil {
			return nil
		}
		if c.fill(row) {
			return row
		}
	}
	return nil
}

// fill chooses all parameters that row lacks, and reports whether it could.
func (c *Cover) fill(row Row) bool {
	for _, i := range c.random.Perm(len(c.parameters)) {
		p := c.parameters[i]
		if _, chosen := row[p.Path]; chosen {
			continue
		}
		best, most := -1, -1
		for _, alternative := range c.random.Perm(len(p.Alternatives)) {
			row[p.Path] = alternative
			if news := c.news(row, p.Path); news > most && c.Refusal(row) == nil {
				best, most = alternative, news
			}
		}
		if best < 0 {
			return false
		}
		row[p.Path] = best
	}
	return true
}

// news counts the open pairs of path and the others of row.
func (c *Cover) news(row Row, path string) int {
	n := 0
	for other := range row {
		if other != path && c.open[pairOf(row, path, other)] {
			n++
		}
	}
	return n
}

func (c *Cover) close(row Row) {
	for one := range row {
		for other := range row {
			if one < other {
				delete(c.open, pairOf(row, one, other))
			}
		}
	}
}

// pairOf is the pair of two parameters of row, in the order of their paths.
func pairOf(row Row, one, other string) Pair {
	if other < one {
		one, other = other, one
	}
	return Pair{one, other, row[one], row[other]}
}

// Refusal returns the rule that refuses what is chosen in row, or nil. A rule that asks for a value that is not chosen yet refuses nothing.
func (c *Cover) Refusal(row Row) *Rule {
	for i, rule := range c.rules {
		known := true
		refused := rule.Refuses(func(path string) any {
			number, chosen := row[path]
			if known = known && chosen; !chosen {
				return nil
			}
			return c.Alternative(path, number)
		})
		if refused && known {
			return &c.rules[i]
		}
	}
	return nil
}

// Parameters returns all parameters, by path.
func (c *Cover) Parameters() []Parameter { return c.parameters }

// Alternative returns a parameter's alternative by its number.
func (c *Cover) Alternative(path string, number int) any { return c.byPath[path].Alternatives[number] }

// Values are a row's values as a chart takes them.
func (c *Cover) Values(row Row) map[string]any {
	values := map[string]any{}
	for path, number := range row {
		Set(values, path, c.Alternative(path, number))
	}
	return values
}

// Set changes one of values by its path. Maps further down are copied before.
func Set(values map[string]any, path string, value any) { set(values, strings.Split(path, "."), value) }

func set(values map[string]any, path []string, value any) {
	if len(path) == 1 {
		values[path[0]] = value
		return
	}
	inside, _ := values[path[0]].(map[string]any)
	inside = maps.Clone(inside)
	if inside == nil {
		inside = map[string]any{}
	}
	set(inside, path[1:], value)
	values[path[0]] = inside
}
