// Package kernel holds a pod's network namespace to a Ruleset: one visit to the open namespace guards it, looks for rules of other projects,
// programs it with the chosen backend, and removes what other backends have left.
package kernel

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/foreign"
	"istio-pod-network-controller/iptables/routing"
	"istio-pod-network-controller/iptables/xtables"
)

// Driver puts rules into an open network namespace.
type Driver interface {
	writer
	reader
	Name() string
	// BuiltIn reports whether our chains stand at the heads of iptables' own.
	BuiltIn() bool
}

// writer changes the rules of a namespace.
type writer interface {
	Apply(ctx context.Context, ns *netns.NS, want iptables.Ruleset) (iptables.Outcome, error)
	// Yield removes this driver's rules, and leaves what the chosen driver also needs.
	Yield(ctx context.Context, ns *netns.NS) (removed bool, err error)
}

// reader reads the rules of a namespace.
type reader interface {
	Present(ctx context.Context, ns *netns.NS) (bool, error)
	Verify(ctx context.Context, ns *netns.NS, want iptables.Ruleset) (iptables.Drift, error)
	List(ctx context.Context, ns *netns.NS) (have iptables.Listing, ok bool, err error)
}

// editor is a Driver that can change rules in place. generation is the number of nf_tables at which the namespace held have. done is
// false if it cannot; then nothing was written.
type editor interface {
	Edit(ctx context.Context, ns *netns.NS, generation uint32, have, want iptables.Ruleset) (drift iptables.Drift, done bool, err error)
}

// Backend programs namespaces with the chosen backend. Once the chosen backend's rules are in force, it removes those of other backends:
// so a node can change its backend while pods run. Each call:
//
//   - opens the namespace once, and refuses the host's and one whose identity is not the place's;
//   - lets all backends work on the open namespace, wherever the path may lead meanwhile;
//   - returns soon after its deadline, however long the pod keeps the kernel busy;
//   - before the first write into a namespace without our rules, looks for rules of other projects, unless it never had a rule;
//   - reports rules of others that decide about packets before ours, and leaves them alone;
//   - returns a panic as an error.
type Backend struct {
	Namespaces
	chosen Driver
	others []Driver
	memory *memory
}

// New returns a backend that programs with the chosen driver.
func New(in Namespaces, chosen Driver, others ...Driver) Backend {
	return Backend{Namespaces: in, chosen: chosen, others: others, memory: newMemory()}
}

// Name returns the chosen backend's name.
func (e Backend) Name() string { return e.chosen.Name() }

// Apply applies the rules with the chosen backend, and then removes those of other backends.
func (e Backend) Apply(ctx context.Context, at podnet.Place, want iptables.Ruleset) (iptables.Outcome, error) {
	return Visit(ctx, e.Namespaces, at, func(ctx context.Context, ns *netns.NS) (out iptables.Outcome, err error) {
		id, err := ns.Identity()
		if err != nil {
			return out, err
		}
		return e.apply(ctx, ns, id, want)
	})
}

// apply is Apply in an open namespace.
func (e Backend) apply(ctx context.Context, ns *netns.NS, id podnet.Identity, want iptables.Ruleset) (out iptables.Outcome, err error) {
	now, known := e.memory.begin(ns, id, want)
	if known {
		if out, done, err := e.fromMemory(ctx, ns, id, now, want); err != nil || done {
			return out, err
		}
	}
	first := known && now.rules.Pristine() && !e.memory.of(id).ours
	in, out, err := e.take(ctx, ns, id, want, first)
	if err != nil {
		return out, err
	}
	if known && out.Changed() {
		now.rules, known = e.memory.onlyOurs(ns, now.rules, out.Transactions)
	}
	if !first || !known || !out.Changed() { // otherwise there never were any other rules
		out, err = in.finish(ctx, ns, want, out)
	}
	if err == nil && known && !out.Provisional && (len(out.Preempted) == 0 || !foreign.Owned(ctx, ns)) {
		now.preempted, now.around, now.by = out.Preempted, out.Around, in.chosen
		e.memory.verified(id, now, want)
	}
	if err == nil {
		err = loopbackError(ns, in.chosen)
	}
	return out, err
}

// fromMemory is Apply for a namespace in which nothing has changed since the last Apply. It reads no rules: want is in force, or is made from
// what is in force. done is false if neither is so.
func (e Backend) fromMemory(
	ctx context.Context, ns *netns.NS, id podnet.Identity, now verification, want iptables.Ruleset,
) (out iptables.Outcome, done bool, err error) {
	last, same, err := e.memory.unchanged(ns, id, now, want)
	if err != nil || !same {
		return out, false, err
	}
	if last.want != now.want {
		driver, can := e.chosen.(editor)
		have, kept := e.memory.rules(last.want)
		if !can || !kept {
			return out, false, nil
		}
		if out.Drift, done, err = driver.Edit(ctx, ns, now.rules.Generation, have, want); err != nil || !done {
			return iptables.Outcome{}, false, err
		}
		out.Drift = out.Drift.Bounded()
		last.rules, last.want, last.chains = last.rules.After(1), now.want, now.chains
	}
	out.Preempted, out.Around = last.preempted, last.around
	e.memory.verified(id, last, want)
	return out, true, loopbackError(ns, last.by)
}

// program applies the rules with the chosen backend. In a namespace without any rule, such as that of a pod that starts (first), there are no
// rules of others to look for.
func (e Backend) program(ctx context.Context, ns *netns.NS, id podnet.Identity, want iptables.Ruleset, first bool) (out iptables.Outcome, err error) {
	if !first {
		if err := e.refuseForeign(ctx, ns, id); err != nil {
			return out, err
		}
	}
	if out, err = e.chosen.Apply(ctx, ns, want); err == nil {
		e.memory.written(id)
	}
	return out, err
}

// take programs the namespace, by another backend if iptables cannot use its tables. It returns the backend that did.
func (e Backend) take(
	ctx context.Context, ns *netns.NS, id podnet.Identity, want iptables.Ruleset, first bool,
) (in Backend, out iptables.Outcome, err error) {
	out, err = e.program(ctx, ns, id, want, first)
	in, other := e.instead(err)
	if !other {
		return e, out, err
	}
	out, errOther := in.program(ctx, ns, id, want, first)
	if errOther != nil {
		return in, out, errors.Join(err, errOther)
	}
	return in, out, nil
}

// instead returns the backend that takes a namespace if err says that iptables cannot use its tables: a pod could make them unreadable. Once
// they are usable again the chosen one takes over.
func (e Backend) instead(err error) (Backend, bool) {
	i := slices.IndexFunc(e.others, func(d Driver) bool { return !d.BuiltIn() })
	if !errors.Is(err, xtables.ErrUnusable) || i < 0 {
		return e, false
	}
	e.others = slices.Clone(e.others)
	e.chosen, e.others[i] = e.others[i], e.chosen
	return e, true
}

// finish removes what other backends have left, and looks for rules of others before ours.
func (e Backend) finish(ctx context.Context, ns *netns.NS, want iptables.Ruleset, out iptables.Outcome) (iptables.Outcome, error) {
	left, err := clearOf(ctx, ns, e.others)
	if len(left) > 0 {
		isAbsent := func(d iptables.Difference) bool { return d.Kind == iptables.KindAbsent }
		out.Drift = append(slices.DeleteFunc(out.Drift, isAbsent), left...)
	}
	if err != nil {
		return out, err
	}
	out.Preempted, out.Around, err = e.preempting(ctx, ns, want)
	return out, err
}

// preempting returns what of others decides about packets before our rules and routes do, one line each, and whether the namespace's addresses and
// devices had a say in that.
func (e Backend) preempting(ctx context.Context, ns *netns.NS, want iptables.Ruleset) (lines []string, around bool, err error) {
	ours := foreign.OursOf(want, e.chosen.BuiltIn())
	lines, err = foreign.Preempting(ctx, ns, ours)
	if err != nil || !want.Routing {
		return lines, ours.LookedAround(), err
	}
	before, err := routing.Before(ns)
	return append(lines, before...), ours.LookedAround(), err
}

func remains(of Driver) iptables.Difference {
	return iptables.Difference{Kind: iptables.KindBackend, Text: "+ rules of the " + of.Name() + " backend"}
}

// refuseForeign returns an error if rules of other projects are there. It does not look if our rules are there or have been: it looked
// before they were written.
func (e Backend) refuseForeign(ctx context.Context, ns *netns.NS, id podnet.Identity) error {
	if e.memory.of(id).ours {
		return nil
	}
	if ours, err := e.present(ctx, ns); err != nil || ours {
		return err
	}
	found, err := foreign.Find(ctx, ns)
	if found != nil {
		return found
	}
	return err
}

// Present reports whether the namespace holds rules of any backend.
func (e Backend) Present(ctx context.Context, at podnet.Place) (present bool, err error) {
	return Visit(ctx, e.Namespaces, at, e.present)
}

func (e Backend) present(ctx context.Context, ns *netns.NS) (bool, error) {
	for _, b := range e.all() {
		if present, err := b.Present(ctx, ns); err != nil || present {
			return present, err
		}
	}
	return false, nil
}

// Remove removes the rules of every backend, and the address and routes that belong to them.
func (e Backend) Remove(ctx context.Context, at podnet.Place) (removed bool, err error) {
	return Visit(ctx, e.Namespaces, at, func(ctx context.Context, ns *netns.NS) (bool, error) {
		id, err := ns.Identity()
		if err != nil {
			return false, err
		}
		e.memory.forget(id)
		rules, err := clearOf(ctx, ns, e.all())
		if err != nil {
			return len(rules) > 0, err
		}
		// Also without rules: an agent that was killed between the two steps leaves addresses and routes.
		routes, err := routing.Remove(ctx, ns)
		return routes || len(rules) > 0, err
	})
}

// clearOf removes the rules of backends, and returns which had any.
func clearOf(ctx context.Context, ns *netns.NS, all []Driver) (removed iptables.Drift, err error) {
	for _, o := range all {
		did, err := o.Yield(ctx, ns)
		if err != nil {
			return removed, fmt.Errorf("remove the rules of the %s backend: %w", o.Name(), err)
		}
		if did {
			removed = append(removed, remains(o))
		}
	}
	return removed, nil
}

func (e Backend) all() []Driver { return append([]Driver{e.chosen}, e.others...) }
