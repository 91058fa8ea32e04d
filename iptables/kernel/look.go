package kernel

import (
	"context"
	"errors"
	"fmt"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/foreign"
	"istio-pod-network-controller/iptables/xtables"
)

// Held is what a namespace holds.
type Held struct {
	// Backend wrote our rules; "" if there are none.
	Backend string
	Lines   []iptables.Line
	// Drift is the difference from what should be there, as long as it is; nil where that is not known.
	Drift iptables.Drift
	// Others is the project whose rules redirect the pod's traffic, or nil.
	Others *podnet.ProgrammedByOthersError
	// Preempting are rules of others that decide about packets before ours.
	Preempting []string
	// Hints name what else keeps redirected connections from the proxy, one sentence each.
	Hints []string
}

// Apart returns the backend for calls that do not wait for those of e, nor those for them: while a call is late, every other one for its
// namespace is refused, and a late look must not stop the pod's programming.
func (e Backend) Apart() Backend {
	e.visits = netns.NewVisits()
	return e
}

// Look reads a namespace, and writes nothing. want may be nil: then our rules are not compared.
func (e Backend) Look(ctx context.Context, at podnet.Place, want *iptables.Ruleset) (Held, error) {
	return Visit(ctx, e.Namespaces, at, func(ctx context.Context, ns *netns.NS) (found Held, err error) {
		have, err := e.list(ctx, ns)
		if err != nil && !errors.Is(err, xtables.ErrUnusable) { // then verify says what is missing
			return found, err
		}
		found.Backend, found.Lines = have.Backend, have.Lines
		if found.Others, err = foreign.Find(ctx, ns); err != nil || want == nil {
			return found, err
		}
		var in Backend
		if in, found.Drift, err = e.verify(ctx, ns, *want); err != nil {
			return found, err
		}
		found.Hints = hints(ctx, ns, *want)
		found.Preempting, _, err = in.preempting(ctx, ns, *want)
		return found, err
	})
}

// verify compares with the chosen backend's rules, or with those of the backend that has taken the namespace instead. It returns that
// backend. Rules of another backend count as drift.
func (e Backend) verify(ctx context.Context, ns *netns.NS, want iptables.Ruleset) (Backend, iptables.Drift, error) {
	drift, err := e.chosen.Verify(ctx, ns, want)
	if other, ok := e.instead(err); ok {
		return other.verify(ctx, ns, want)
	}
	renamed, errRenamed := renamedLoopback(ns, e.chosen)
	drift, err = append(drift, renamed...), errors.Join(err, errRenamed)
	for _, o := range e.others {
		present, errPresent := o.Present(ctx, ns)
		if present {
			drift = append(drift, remains(o))
		}
		err = errors.Join(err, errPresent)
	}
	return e, drift, err
}

// List returns the rules of the namespace, the chosen backend's first. ok is false if there are none.
func (e Backend) List(ctx context.Context, at podnet.Place) (have iptables.Listing, ok bool, err error) {
	have, err = Visit(ctx, e.Namespaces, at, e.list)
	return have, have.Backend != "", err
}

func (e Backend) list(ctx context.Context, ns *netns.NS) (iptables.Listing, error) {
	var unusable error
	for _, b := range e.all() {
		have, ok, err := b.List(ctx, ns)
		switch {
		case errors.Is(err, xtables.ErrUnusable): // another backend may have taken the namespace
			unusable = errors.Join(unusable, fmt.Errorf("read the rules of the %s backend: %w", b.Name(), err))
		case err != nil:
			return iptables.Listing{}, fmt.Errorf("read the rules of the %s backend: %w", b.Name(), err)
		case ok:
			have.Backend = b.Name()
			return have, nil
		}
	}
	return iptables.Listing{}, unusable
}
