package sidecars

import (
	"context"
	"errors"
	"slices"
	"time"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/home"
	"istio-pod-network-controller/sidecars/plan"
	"istio-pod-network-controller/sidecars/profile"
)

// view is a sandbox as one step has found it: what its pod has chosen, the containers, the notes in its home, and what proxies have answered
// until now. It becomes the two arguments of Decide.
type view struct {
	key     podnet.Key
	sandbox podnet.Sandbox
	choice  Choice
	home    home.Home
	there   []sidecar.Container // oldest first
	answers map[string]answer   // by container ID

	// before is the version of the profile that worked last on the node, if that is not the present one, and bad reports whether the present one
	// has failed there since. earlier are versions that worked before. aim is the version that a proxy is started from now.
	before, aim *profile.Version
	earlier     []*profile.Version
	bad         bool
}

// desired returns what should run in the sandbox. upgrade reports whether it has a turn for it.
func (v view) desired(f *followed, upgrade bool) plan.Desired {
	p := v.aim
	if p == nil {
		return plan.Desired{Keep: !v.choice.OptedOut, MaxRunning: 1, HotRestart: v.hotRestarts(), StartLimit: time.Hour, DrainLimit: time.Hour}
	}
	out := plan.Desired{
		Wanted: !v.done() && !v.choice.Finished && !v.home.Finished(time.Now()), Keep: true,
		Hash: p.Hash, MaxRunning: p.MaxRunning(), HotRestart: v.hotRestarts(), Upgrade: upgrade || !v.needsTurn(),
		StartLimit: time.Duration(p.Spec.Readiness.StartSeconds) * time.Second, DrainLimit: p.DrainLimit(), Epoch: f.epoch, RetryAt: f.retryAt(),
	}
	if p.Spec.Handover == v1alpha1.HandoverReusePort {
		out.Slots = profile.Slots
	}
	if f.noHandover == p.Hash || v.clings(f) {
		out.MaxRunning = 1
	}
	return out
}

// observed returns the sandbox's containers as Decide sees them. unheard reports whether connections to the profile's port are refused.
func (v view) observed(unheard bool) []plan.Proxy {
	out := make([]plan.Proxy, 0, len(v.there))
	for _, c := range v.there {
		a := v.answers[c.ID]
		p := plan.Proxy{
			ID: c.ID, Epoch: c.Epoch, State: c.State, Hash: c.Hash, Since: a.seen, Asked: a.probes.Asked, Ready: a.probes.WasReady,
			DrainedAt: v.home.NotedAt(home.Draining, c.Epoch), Stays: v.isDone(c) || a.untold, Hung: !a.probes.HungAt.IsZero(),
		}
		if c.HotRestart != nil && c.State == sidecar.Running {
			p.Ready = v.home.Noted(home.Ready, c.Epoch)
			p.Orphan = v.isOrphan(c)
			p.Succeeded = unheard && v.lostSuccessor(c)
		}
		out = append(out, p)
	}
	return out
}

// needsTurn reports whether an upgrade needs a turn: an older version is ready, and none of the present version is ready beside it. If one is,
// the old one only has to be told to drain. A proxy that hangs does not wait: that its successor fails may be its own fault.
func (v view) needsTurn() bool {
	old, present := false, false
	for _, c := range v.there {
		a := v.answers[c.ID]
		if c.State != sidecar.Running || !a.probes.WasReady || !a.probes.HungAt.IsZero() || v.drains(c.Epoch) {
			continue
		}
		old, present = old || c.Hash != v.choice.Profile.Hash, present || c.Hash == v.choice.Profile.Hash
	}
	return old && !present
}

// nobodyListens reports whether nobody listens for a pod whose Envoy has lost its successor. The Envoy does not say whether the other one took its
// listeners before it ended.
func nobodyListens(ctx context.Context, asker Asker, v view) bool {
	return v.choice.Profile != nil && slices.ContainsFunc(v.there, v.lostSuccessor) &&
		errors.Is(asker.Listens(ctx, v.sandbox, v.choice.Profile), ErrNobodyListens)
}

// lostSuccessor reports whether an Envoy that serves had a successor, which no longer runs.
func (v view) lostSuccessor(c sidecar.Container) bool {
	return c.HotRestart != nil && c.State == sidecar.Running && v.home.Noted(home.Ready, c.Epoch) && !v.drains(c.Epoch) &&
		v.home.Noted(home.Successor, c.Epoch) && !v.inLine(c, +1)
}

// isOrphan reports whether an Envoy runs that does not serve, and the proxy that it takes over from has ended.
func (v view) isOrphan(c sidecar.Container) bool {
	return c.State == sidecar.Running && v.overtakes(c) && c.HotRestart.Epoch > 0 && !v.inLine(c, -1)
}

// inLine reports whether the proxy a step before or after one in its line runs.
func (v view) inLine(c sidecar.Container, step int64) bool {
	return slices.ContainsFunc(v.there, func(o sidecar.Container) bool {
		return o.State == sidecar.Running && o.HotRestart != nil && o.HotRestart.Line == c.HotRestart.Line &&
			int64(o.HotRestart.Epoch) == int64(c.HotRestart.Epoch)+step
	})
}

// replaced reports whether an epoch's proxy has a successor that serves, which ends it.
func (v view) replaced(epoch uint32) bool {
	return v.home.Noted(home.Successor, epoch) && slices.ContainsFunc(v.there, func(c sidecar.Container) bool {
		return c.State == sidecar.Running && c.Epoch > epoch && v.home.Noted(home.Ready, c.Epoch)
	})
}

// clings reports whether there is a proxy that hangs, and a successor has failed since: it cannot hand over.
func (v view) clings(f *followed) bool {
	return slices.ContainsFunc(v.there, func(c sidecar.Container) bool {
		hung := v.answers[c.ID].probes.HungAt
		return !hung.IsZero() && c.State == sidecar.Running && f.failed.After(hung)
	})
}

// expected reports whether a proxy's end is no news: it was noted, it was told to end, or it was to be replaced since it hung.
func (v view) expected(a answer) bool {
	return !a.probes.HungAt.IsZero() || a.ended || a.stopped || v.drains(a.epoch) || v.home.Noted(home.Telling, a.epoch) || v.replaced(a.epoch)
}

// hotRestarts reports whether there are proxies that take over from each other by Envoy's hot restart.
func (v view) hotRestarts() bool {
	return v.aim.HotRestarts() || slices.ContainsFunc(v.there, func(c sidecar.Container) bool { return c.HotRestart != nil })
}

// done reports whether the sandbox's proxy is not started again.
func (v view) done() bool { return slices.ContainsFunc(v.there, v.isDone) }

// isDone reports whether no proxy is started after this one until the profile changes: restartPolicy is OnFailure, it ended with code 0, and
// no other is newer or takes connections. Its container is kept to tell the next agent. The kubelet keeps it, too, as the
// newest of its name.
func (v view) isDone(c sidecar.Container) bool {
	p := v.choice.Profile
	if p == nil || p.Spec.RestartPolicy != restartOnFailure || p.Hash != v.answers[c.ID].under || v.choice.Finished {
		return false
	}
	another := slices.ContainsFunc(v.there, func(o sidecar.Container) bool {
		return o.Epoch > c.Epoch || o.State == sidecar.Running && !v.drains(o.Epoch)
	})
	return c.State == sidecar.Exited && v.answers[c.ID].well && !another
}

func (v view) drains(epoch uint32) bool { return v.home.Noted(home.Draining, epoch) }

func (v view) container(id string) *sidecar.Container {
	if i := slices.IndexFunc(v.there, func(c sidecar.Container) bool { return c.ID == id }); i >= 0 {
		return &v.there[i]
	}
	return nil
}

// madeFrom returns the version of the profile with this hash, or the present one if it is not known.
func (v view) madeFrom(hash string) *profile.Version {
	for _, p := range append(slices.Clone(v.earlier), v.before) {
		if p != nil && hash == p.Hash {
			return p
		}
	}
	return v.choice.Profile
}

// overtakes reports whether a proxy is an Envoy that has not said yet that it serves.
func (v view) overtakes(c sidecar.Container) bool {
	return c.HotRestart != nil && !v.home.Noted(home.Ready, c.Epoch)
}
