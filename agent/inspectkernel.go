package agent

import (
	"context"
	"fmt"

	"istio-pod-network-controller/diagnostics/inspect"
	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/foreign"
)

// held is what a namespace holds.
type held struct {
	backend string
	rules   []inspect.Rule
	drift   iptables.Drift // compared with what should be there; nil where that is not known
	others  inspect.Others
}

// look reads a namespace, and writes nothing. want may be nil: then our rules are not compared. visits must not be the backend's own: while a
// call is late, its Visits refuse every other call for the namespace, and a late look must not stop the pod's programming.
func (e Exclusive) look(ctx context.Context, visits *netns.Visits, at podnet.Place, want *iptables.Ruleset) (held, error) {
	e.visits = visits
	return in(ctx, e, at, func(ctx context.Context, ns *netns.NS) (found held, err error) {
		if found.backend, found.rules, err = e.rulesIn(ctx, ns.Path()); err != nil {
			return found, err
		}
		other, err := foreign.Find(ctx, ns)
		if err != nil {
			return found, err
		}
		if other != nil {
			found.others.Owner, found.others.Found = other.Owner, other.Found
		}
		if want == nil {
			return found, nil
		}
		if found.drift, err = e.Verify(ctx, podnet.Place{Path: ns.Path()}, *want); err != nil {
			return found, err
		}
		found.drift = found.drift.Bounded()
		found.others.Preempting, err = foreign.Preempting(ctx, ns, foreign.OursOf(*want, e.chosen.Name() != BackendNftables))
		return found, err
	})
}

// rulesIn returns our rules in words, and which backend wrote them; "" if there are none.
func (e Exclusive) rulesIn(ctx context.Context, path string) (string, []inspect.Rule, error) {
	for _, b := range e.all() {
		have, ok, err := b.List(ctx, path)
		if err != nil {
			return "", nil, fmt.Errorf("read the rules of the %s backend: %w", b.Name(), err)
		}
		if ok {
			return b.Name(), shownRules(have.Lines), nil
		}
	}
	return "", nil, nil
}
