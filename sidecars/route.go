package sidecars

import (
	"cmp"
	"context"
	"slices"
	"time"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/plan"
)

// route tells the core where the rules of the sandbox have to lead. It returns the decision without the actions that wait until they do.
func route(m *Manager, o observed, d decision) decision {
	to, serves, known := routeOf(o, d)
	if known && !m.Routes.Lead(o.sandbox, to, serves) {
		d.plan.Actions = slices.DeleteFunc(slices.Clone(d.plan.Actions), func(a plan.Action) bool { return needsRules(o, a) })
	}
	return d
}

// rulesLimit is how long the rules may take until they lead where they have to.
const rulesLimit = 10 * time.Second

// awaitRules returns the memory after actions had to wait for the rules, or did not. Rules that do not follow, as those of a pod with a wrong annotation,
// are a failure of this pod alone: it gives its upgrade slot to the next one.
func awaitRules(ctx context.Context, m *Manager, o observed, mem memory, waits bool) memory {
	switch {
	case !waits:
		mem.rulesSince = time.Time{}
	case mem.rulesSince.IsZero():
		mem.rulesSince = time.Now()
	case time.Since(mem.rulesSince) >= rulesLimit:
		mem.rulesSince = time.Now()
		return failed(ctx, m, o, mem, "", "the pod's rules do not lead to its next proxy: the pod's condition says why", time.Now())
	}
	return mem
}

// routeOf returns what the rules need to know of the sandbox's proxies. They lead to the serving proxy; if none serves, to the proxy that is started next.
// known is false if there is no such proxy, or nothing is known of it.
func routeOf(o observed, d decision) (to intent.ManagedProxy, serves, known bool) {
	starts := slices.ContainsFunc(d.plan.Actions, func(a plan.Action) bool {
		return a.Verb == plan.Start || a.Verb == plan.Stop && a.ID == d.plan.Serving // which makes room for one
	})
	var beside []intent.Owner
	for _, c := range o.containers {
		isServing := c.ID == d.plan.Serving
		if !isServing && c.State != sidecar.Running {
			continue
		}
		of := o.home.Epoch(c.Epoch).Facts().Proxy
		if isServing {
			to, serves = of, true
		} else if of.Profile != "" {
			beside = append(beside, of.Owner)
		}
	}
	if !serves && d.version != nil && starts {
		to = d.version.ManagedProxy()
	}
	if to.Profile == "" {
		return to, false, false
	}
	to.Beside = beside
	if d.version != nil && starts {
		to.Beside = append(to.Beside, d.version.ManagedProxy().Owner)
	}
	slices.SortFunc(to.Beside, func(a, b intent.Owner) int { return cmp.Or(cmp.Compare(a.UID, b.UID), cmp.Compare(a.GID, b.GID)) })
	to.Beside = slices.DeleteFunc(slices.Compact(to.Beside), func(other intent.Owner) bool { return other == to.Owner })
	return to, serves, true
}

// needsRules reports whether an action is done only once the rules lead where they have to: a start, as the new proxy's own connections would be
// redirected, and what takes the listeners away to which they may lead.
func needsRules(o observed, a plan.Action) bool {
	switch a.Verb {
	case plan.Start, plan.Drain:
		return true
	case plan.Stop:
		return o.proxies[a.ID].probes.WasReady
	case plan.Remove:
	}
	return false
}
