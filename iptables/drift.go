package iptables

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Kind is what a difference is of.
type Kind string

// The kinds of differences.
const (
	KindAbsent  Kind = "absent"  // nothing of ours was there
	KindTable   Kind = "table"   // the table, its chains, or their flags
	KindRules   Kind = "rules"   // the content of chains
	KindSets    Kind = "sets"    // sets and their content
	KindAddress Kind = "address" // addresses on lo
	KindRoute   Kind = "route"   // routing rules and routes
	KindBackend Kind = "backend" // rules of another backend of ours were left
)

// Kinds returns all kinds.
func Kinds() []Kind {
	return []Kind{KindAbsent, KindTable, KindRules, KindSets, KindAddress, KindRoute, KindBackend}
}

// Difference is one difference between the kernel's state and what it should be. In Text, "- " is missing and "+ " is too much.
type Difference struct {
	Kind Kind
	Text string
}

// Drift is how the kernel's state differs from what it should be. Empty means no drift.
type Drift []Difference

// String returns one line for each difference.
func (d Drift) String() string {
	lines := make([]string, len(d))
	for i, one := range d {
		lines[i] = one.Text
	}
	return strings.Join(lines, "\n")
}

// Kinds returns the kinds of the differences, sorted, each once.
func (d Drift) Kinds() []Kind {
	var out []Kind
	for _, one := range d {
		out = append(out, one.Kind)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Bounds of what is reported about a namespace, since its pod may have written the text.
const (
	maxReported  = 10
	maxTextBytes = 200
)

// Bounded returns at most 10 differences, with at least one of each kind, and a text of at most 200 printable bytes each.
func (d Drift) Bounded() Drift {
	first := map[Kind]bool{}
	more := max(0, maxReported-1-len(d.Kinds())) // how many may follow the first of their kind
	var out Drift
	left := 0
	for _, one := range d {
		switch {
		case !first[one.Kind]:
			first[one.Kind] = true
		case more > 0:
			more--
		default:
			left++
			continue
		}
		out = append(out, Difference{one.Kind, Printable(one.Text)})
	}
	if left > 0 {
		out = append(out, Difference{d[len(d)-1].Kind, fmt.Sprintf("and %d more differences", left)})
	}
	return out
}

// Printable returns a text for reports: at most 200 bytes, of printable ASCII only.
func Printable(text string) string { return printable(text, maxTextBytes) }

// printable returns at most so many bytes of a text, of printable ASCII only.
func printable(text string, most int) string {
	const cut = "..."
	if len(text) > most {
		text = text[:most-len(cut)] + cut
	}
	out := []byte(text)
	for i, c := range out {
		if c < ' ' || c > '~' {
			out[i] = '?'
		}
	}
	return string(out)
}

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

// Trimmed removes what both have at head and tail: rules are few and change in one place. head is how much it has removed there.
func Trimmed[E comparable](want, have []E) (missing, more []E, head int) {
	for head < min(len(want), len(have)) && want[head] == have[head] {
		head++
	}
	missing, more = want[head:], have[head:]
	for len(missing) > 0 && len(more) > 0 && missing[len(missing)-1] == more[len(more)-1] {
		missing, more = missing[:len(missing)-1], more[:len(more)-1]
	}
	return missing, more, head
}

type driftKey struct{}

// OnDrift returns a context for Apply, which calls seen with what differs before it writes anything. An Apply that does not return in
// time has no other way to say what it has seen. seen may be called on another goroutine, and after its caller has given up.
func OnDrift(ctx context.Context, seen func(Drift)) context.Context {
	return context.WithValue(ctx, driftKey{}, seen)
}

// SawDrift calls the function of OnDrift, if there is one.
func SawDrift(ctx context.Context, drift Drift) {
	if seen, ok := ctx.Value(driftKey{}).(func(Drift)); ok {
		seen(drift.Bounded())
	}
}

// Outcome is what a call of a backend's Apply found and did; with an error, until then.
type Outcome struct {
	// Drift is what differed before, bounded. Empty means that nothing was written.
	Drift Drift
	// Preempted are rules of others that decide about packets before ours, one line each. They are left alone.
	Preempted []string
	// Around reports that some were left out because of the namespace's addresses and devices, whose changes the kernel does not count.
	Around bool
	// Provisional reports that the rules stand in the second table. The kernel does not count it as a change when the owner of the first ends.
	Provisional bool
	// Transactions is the least number of nf_tables transactions that were made; 0 if none, or if that is not known.
	Transactions int
}

// Changed reports whether anything was written.
func (o Outcome) Changed() bool { return len(o.Drift) > 0 }
