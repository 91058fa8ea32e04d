package sidecars

import (
	"context"
	"slices"
	"strings"
	"time"

	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/profile"
	"istio-pod-network-controller/sidecars/rollout"
)

const (
	// mostStandIns is how many proxies of the last good version are started in a row, none of which becomes ready, before the present one is tried.
	mostStandIns = 3
	// lossPause is the time between two tries of a version that has failed in a pod which has no proxy meanwhile.
	lossPause = 5 * time.Minute
)

// noteGood notes that the profile's present version works once a proxy of it is ready, and, once for each proxy of Istio, what it was computed from.
func noteGood(ctx context.Context, m *Manager, o observed) observed {
	p := o.choice.Profile
	works := func(c sidecar.Container) bool { return versionOf(c) == p.Hash && o.isReady(c) }
	if p != nil && slices.ContainsFunc(o.containers, works) {
		logUnnoted(ctx, p, m.Good.Works(p))
	}
	for _, c := range o.containers {
		if known := o.proxies[c.ID]; p != nil && known.sources != nil && o.isReady(c) {
			logUnnoted(ctx, p, m.Good.Computed(p.Name, known.sources))
			known.sources = nil
			o = o.with(c.ID, known)
		}
	}
	o.versions = versionsOf(m, p)
	return o
}

// takeSlot returns the sandbox's upgrade slot, and without one when to ask for it if not now.
func takeSlot(ctx context.Context, m *Manager, o observed, mem memory) (has rollout.UpgradeSlot, at time.Time) {
	p, want := o.choice.Profile, rollout.ForUpgrade
	if p == nil || o.choice.Ending || hasDone(o) || o.notes.Finished(time.Now()) {
		m.followed.enqueue(m.Rollout.Leave(o.key))
		return "", at
	}
	if has = m.Rollout.Join(p, o.key, o.choice.Held); has != "" {
		return has, at
	}
	if isFull(o, mem.upgrades) || !needsSlot(o) && !waitsForFirstProxy(o) && !isFirstOnNode(ctx, m.Runtime, o) {
		return "", at
	}
	if servesRotated(o) {
		want = rollout.ForRotation
	}
	if at = slotAt(o, want, mem); time.Now().Before(at) {
		return "", at
	}
	if m.Rollout.Take(p, o.key, want) {
		has = want
	}
	return has, time.Time{}
}

// slotAt returns when the sandbox may ask for a slot, which it uses at once. A version that takes over from a running one is tried soon: nobody notices.
func slotAt(o observed, want rollout.UpgradeSlot, mem memory) time.Time {
	u := mem.upgrades
	switch {
	case u.failedHash != o.choice.Profile.Hash:
		return mem.failures.retryAt()
	case want == rollout.ForUpgrade && endsFirst(o, u) && !o.choice.Later: // which loses nothing
		return u.failedAt.Add(lossPause)
	}
	return later(mem.failures.retryAt(), u.failedAt.Add(backoff(u.failedInARow)))
}

// endsFirst reports whether the running proxy is ended before one of the present version starts.
func endsFirst(o observed, u upgrades) bool {
	p := o.choice.Profile
	return p.MaxRunning() == 1 || u.noHandover == p.Hash
}

// isFull reports whether a new proxy would have to wait for the end of a draining one. A slot would hold up others for as long. A proxy that
// still starts makes room: it becomes ready, or is ended.
func isFull(o observed, u upgrades) bool {
	stay := 0
	for _, c := range o.containers {
		if c.State == sidecar.Running && (o.proxies[c.ID].probes.WasReady || o.drains(c.Epoch)) {
			stay++
		}
	}
	return !endsFirst(o, u) && stay >= o.choice.Profile.MaxRunning()
}

// needsSlot reports whether an upgrade needs a slot: an older version is ready, and none of the present version is ready beside it. If one is,
// the old one only has to be told to drain. A proxy that hangs does not wait: that its successor fails may be its own fault.
func needsSlot(o observed) bool {
	old, present := false, false
	for _, c := range o.containers {
		if !o.isReady(c) || !o.proxies[c.ID].probes.HungAt.IsZero() {
			continue
		}
		old, present = old || c.Hash != o.choice.Profile.Hash, present || c.Hash == o.choice.Profile.Hash
	}
	return old && !present
}

// waitsForFirstProxy reports whether the pod waits for its first proxy, without rules. All pods of a node may choose a profile at once, which may not work.
func waitsForFirstProxy(o observed) bool {
	return o.choice.Later && !slices.ContainsFunc(o.containers, o.isReady)
}

// isFirstOnNode reports whether the sandbox tries the present version of the profile although another one is known to work: no pod of the node has
// tried it, and none has a proxy whose upgrade would.
func isFirstOnNode(ctx context.Context, runtime Runtime, o observed) bool {
	runs := func(c sidecar.Container) bool { return c.State == sidecar.Running && c.Profile == o.choice.Name }
	if o.versions.lastGood == nil || o.versions.presentFailed || slices.ContainsFunc(o.containers, runs) {
		return false
	}
	all, err := runtime.List(ctx, "")
	return err == nil && !slices.ContainsFunc(all, runs)
}

// servesRotated reports whether the newest ready proxy has to be replaced for its secrets.
func servesRotated(o observed) bool {
	for _, c := range slices.Backward(o.containers) {
		if o.isReady(c) {
			return strings.HasSuffix(c.Hash, outdatedHash)
		}
	}
	return false
}

// versionsOf returns what the node knows of a profile's versions beside the present one.
func versionsOf(m *Manager, present *profile.Version) (out versions) {
	if present != nil {
		out.lastGood, out.earlier, out.presentFailed = m.Good.Before(present)
	}
	return out
}
