package sidecars

import (
	"slices"
	"time"

	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/home"
	"istio-pod-network-controller/sidecars/plan"
	"istio-pod-network-controller/sidecars/profile"
	"istio-pod-network-controller/sidecars/rollout"
)

// decide says what to do about a sandbox. slot is the upgrade slot that it has. unheard reports whether connections to the profile's port are refused.
func decide(o observed, mem memory, slot rollout.UpgradeSlot, unheard bool, now time.Time) decision {
	version := versionToStart(o, mem.upgrades, slot)
	return decision{plan.Decide(desired(o, mem, version, slot != "", now), planned(o, unheard), now), version}
}

// versionToStart returns the version of the profile that a proxy is started from: the present one if it is known to work, or the sandbox has the slot to
// try it. Otherwise the last version that worked, unless it no longer does.
func versionToStart(o observed, u upgrades, slot rollout.UpgradeSlot) *profile.Version {
	p, good := o.choice.Profile, o.versions.lastGood
	runs := func(hash string) bool {
		return slices.ContainsFunc(o.containers, func(c sidecar.Container) bool { return o.isAsked(c) && c.Hash == hash })
	}
	if good == nil || slot == rollout.ForUpgrade || runs(p.Hash) || u.standIns >= mostStandIns && !runs(good.Hash) {
		return p
	}
	return good
}

// desired returns what should run in the sandbox. upgrade reports whether it has a slot for it.
func desired(o observed, mem memory, p *profile.Version, upgrade bool, now time.Time) plan.Desired {
	hotRestart := p.HotRestarts() || slices.ContainsFunc(o.containers, func(c sidecar.Container) bool { return c.HotRestart != nil })
	if p == nil {
		return plan.Desired{Keep: !o.choice.OptedOut, MaxRunning: 1, HotRestart: hotRestart, StartLimit: time.Hour, DrainLimit: time.Hour}
	}
	out := plan.Desired{
		Wanted: !hasDone(o) && !o.choice.Finished && !o.notes.Finished(now) && (upgrade || !waitsForFirstProxy(o)), Keep: true,
		Hash: p.Hash, MaxRunning: p.MaxRunning(), HotRestart: hotRestart, Upgrade: upgrade || !needsSlot(o),
		StartLimit: time.Duration(p.Spec.Readiness.StartSeconds) * time.Second, DrainLimit: p.DrainLimit(), Epoch: mem.epoch, RetryAt: mem.failures.retryAt(),
	}
	if p.Spec.Handover == profile.HandoverReusePort {
		out.Slots = profile.Slots
	}
	if mem.upgrades.noHandover == p.Hash || cannotHandOver(o, mem.failures) {
		out.MaxRunning = 1
	}
	return out
}

// cannotHandOver reports whether there is a proxy that hangs, and a successor has failed since: HAProxy and Envoy take over by an answer of the old one.
func cannotHandOver(o observed, f failures) bool {
	return slices.ContainsFunc(o.containers, func(c sidecar.Container) bool {
		hung := o.proxies[c.ID].probes.HungAt
		return !hung.IsZero() && c.State == sidecar.Running && f.lastAt.After(hung)
	})
}

// planned returns the sandbox's containers as plan.Decide sees them.
func planned(o observed, unheard bool) []plan.Proxy {
	out := make([]plan.Proxy, 0, len(o.containers))
	for _, c := range o.containers {
		known := o.proxies[c.ID]
		p := plan.Proxy{
			ID: c.ID, Epoch: c.Epoch, State: c.State, Hash: c.Hash, Since: known.seenSince, Asked: known.probes.Asked, Ready: known.probes.WasReady,
			DrainedAt: o.notes.At(home.Draining, c.Epoch), Stays: isDone(o, c) || known.exit.unreported, Hung: !known.probes.HungAt.IsZero(),
		}
		if c.HotRestart != nil && c.State == sidecar.Running {
			p.Ready = o.notes.Has(home.Ready, c.Epoch)
			p.Orphan = o.isOrphan(c)
			p.Succeeded = unheard && o.lostSuccessor(c)
		}
		out = append(out, p)
	}
	return out
}
