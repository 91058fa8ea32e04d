package kernel

import (
	"context"
	"errors"

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
		found.Preempting, err = foreign.Preempting(ctx, ns, foreign.OursOf(*want, in.chosen.BuiltIn()))
		return found, err
	})
}
