package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/foreign"
)

// backend puts rules into the network namespace at a path.
type backend interface {
	writer
	inspector
	Name() string
}

// writer changes the rules of a namespace.
type writer interface {
	Apply(ctx context.Context, path string, want iptables.Ruleset) (iptables.Outcome, error)
	Remove(ctx context.Context, path string) (removed bool, err error)
	// Yield removes this backend's rules, and leaves what the chosen backend also needs.
	Yield(ctx context.Context, path string) (removed bool, err error)
}

// inspector reads the rules of a namespace.
type inspector interface {
	Present(ctx context.Context, path string) (bool, error)
	Verify(ctx context.Context, path string, want iptables.Ruleset) (iptables.Drift, error)
	List(ctx context.Context, path string) (have Listing, ok bool, err error)
}

// The values of Language in a Listing.
const (
	LanguageNft      = "nft"
	LanguageIptables = "iptables"
)

// Listing is the rules of a namespace, with counters: as text in the language of their backend, as a View for machines, and in words.
type Listing struct {
	Language string
	Text     string
	View     iptables.View
	Lines    []iptables.Line
}

// Exclusive programs namespaces with the chosen backend. Once the chosen backend's rules are in force, it removes those of other backends:
// so a node can change its backend while pods run. Each call:
//
//   - opens the namespace once, and refuses the host's and one whose identity is not the place's;
//   - lets all backends work on the open namespace, wherever the path may lead meanwhile;
//   - returns soon after its deadline, however long the pod keeps the kernel busy;
//   - before the first write into a namespace without our rules, looks for rules of other projects, unless it never had a rule;
//   - reports rules of others that decide about packets before ours, and leaves them alone;
//   - returns a panic as an error.
type Exclusive struct {
	chosen     backend
	others     []backend
	guard      netns.Guard
	visits     *netns.Visits
	programmed *programmed
	verified   *verified
	// panicked is called after a panic. It may be nil.
	panicked func(ctx context.Context, p *netns.PanicError)
}

// Name returns the chosen backend's name.
func (e Exclusive) Name() string { return e.chosen.Name() }

// Apply applies the rules with the chosen backend, and then removes those of other backends.
func (e Exclusive) Apply(ctx context.Context, at podnet.Place, want iptables.Ruleset) (iptables.Outcome, error) {
	return in(ctx, e, at, func(ctx context.Context, ns *netns.NS) (out iptables.Outcome, err error) {
		id, err := identityAt(ns, at)
		if err != nil {
			return out, err
		}
		now, known := e.verified.begin(ns, id, want)
		if known {
			if same, err := e.verified.unchanged(ns, id, now, want); err != nil || same {
				return out, err
			}
		}
		first := known && now.rules.Pristine() && !e.programmed.has(id)
		if out, err = e.program(ctx, ns, id, want, first); err != nil || first && e.alone(ns, id, now) {
			return out, err
		}
		out, err = e.finish(ctx, ns, want, out)
		if err == nil && known && !out.Changed() && len(out.Preempted) == 0 {
			e.verified.add(id, now)
		}
		return out, err
	})
}

// program applies the rules with the chosen backend. In a namespace without any rule, such as that of a pod that starts (first), there are no
// rules of others to look for.
func (e Exclusive) program(ctx context.Context, ns *netns.NS, id podnet.Identity, want iptables.Ruleset, first bool) (out iptables.Outcome, err error) {
	if !first {
		if err := e.refuseForeign(ctx, ns, id); err != nil {
			return out, err
		}
	}
	if out, err = e.chosen.Apply(ctx, ns.Path(), want); err == nil {
		e.programmed.add(id)
	}
	return out, err
}

// alone reports whether the chosen backend's transaction is the only one that the namespace has ever had: then it holds no rules of others or of
// other backends. That is remembered.
func (e Exclusive) alone(ns *netns.NS, id podnet.Identity, before verification) bool {
	after, ok := e.verified.reader.State(ns)
	if !ok || !after.FirstOf(before.rules) {
		return false
	}
	before.rules = after
	e.verified.add(id, before)
	return true
}

// finish removes what other backends have left, and looks for rules of others before ours.
func (e Exclusive) finish(ctx context.Context, ns *netns.NS, want iptables.Ruleset, out iptables.Outcome) (iptables.Outcome, error) {
	left, err := e.clear(ctx, ns.Path())
	if len(left) > 0 {
		isAbsent := func(d iptables.Difference) bool { return d.Kind == iptables.KindAbsent }
		out.Drift = append(slices.DeleteFunc(out.Drift, isAbsent), left...)
	}
	if err != nil {
		return out, err
	}
	out.Preempted, err = foreign.Preempting(ctx, ns, foreign.OursOf(want, e.chosen.Name() != BackendNftables))
	return out, err
}

func remains(of backend) iptables.Difference {
	return iptables.Difference{Kind: iptables.KindBackend, Text: "+ rules of the " + of.Name() + " backend"}
}

// refuseForeign returns an error if rules of other projects are there. It does not look if our rules are there or have been: it looked
// before they were written.
func (e Exclusive) refuseForeign(ctx context.Context, ns *netns.NS, id podnet.Identity) error {
	if e.programmed.has(id) {
		return nil
	}
	if ours, err := e.present(ctx, ns.Path()); err != nil || ours {
		return err
	}
	found, err := foreign.Find(ctx, ns)
	if found != nil {
		return found
	}
	return err
}

// Present reports whether the namespace holds rules of any backend.
func (e Exclusive) Present(ctx context.Context, at podnet.Place) (present bool, err error) {
	return in(ctx, e, at, func(ctx context.Context, ns *netns.NS) (bool, error) { return e.present(ctx, ns.Path()) })
}

func (e Exclusive) present(ctx context.Context, path string) (bool, error) {
	for _, b := range e.all() {
		if present, err := b.Present(ctx, path); err != nil || present {
			return present, err
		}
	}
	return false, nil
}

// Remove removes the rules of every backend, and the address and routes that belong to them.
func (e Exclusive) Remove(ctx context.Context, at podnet.Place) (removed bool, err error) {
	return in(ctx, e, at, func(ctx context.Context, ns *netns.NS) (bool, error) {
		path := ns.Path()
		id, err := identityAt(ns, at)
		if err != nil {
			return false, err
		}
		e.programmed.drop(id)
		removed, err := e.chosen.Remove(ctx, path)
		if err != nil {
			return removed, err
		}
		left, err := e.clear(ctx, path)
		return removed || len(left) > 0, err
	})
}

// clear removes the rules of the other backends, and returns which had any.
func (e Exclusive) clear(ctx context.Context, path string) (removed iptables.Drift, err error) {
	for _, o := range e.others {
		did, err := o.Yield(ctx, path)
		if err != nil {
			return removed, fmt.Errorf("remove what the %s backend has left: %w", o.Name(), err)
		}
		if did {
			removed = append(removed, remains(o))
		}
	}
	return removed, nil
}

// Verify compares with the chosen backend's rules; rules of another backend count as drift.
func (e Exclusive) Verify(ctx context.Context, at podnet.Place, want iptables.Ruleset) (iptables.Drift, error) {
	return in(ctx, e, at, func(ctx context.Context, ns *netns.NS) (iptables.Drift, error) {
		path := ns.Path()
		drift, err := e.chosen.Verify(ctx, path, want)
		for _, o := range e.others {
			present, errPresent := o.Present(ctx, path)
			if present {
				drift = append(drift, remains(o))
			}
			err = errors.Join(err, errPresent)
		}
		return drift, err
	})
}

// List returns the rules that are there, the chosen backend's first.
func (e Exclusive) List(ctx context.Context, at podnet.Place) (have Listing, ok bool, err error) {
	type result struct {
		have Listing
		ok   bool
	}
	found, err := in(ctx, e, at, func(ctx context.Context, ns *netns.NS) (r result, err error) {
		path := ns.Path()
		for _, b := range e.all() {
			if r.have, r.ok, err = b.List(ctx, path); err != nil || r.ok {
				return r, err
			}
		}
		return r, nil
	})
	return found.have, found.ok, err
}

// Describe returns the rules of ours that are there, in words and with counters, and the language of their backend; none if there are none.
func (e Exclusive) Describe(ctx context.Context, at podnet.Place) (lines []iptables.Line, language string, err error) {
	have, ok, err := e.List(ctx, at)
	if err != nil || !ok {
		return nil, "", err
	}
	return have.Lines, have.Language, nil
}

func (e Exclusive) all() []backend { return append([]backend{e.chosen}, e.others...) }
