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
	// goodStarts is how many proxies of the last good version are started in a row, none of which becomes ready, before the present one is tried.
	goodStarts = 3
	// lossPause is the time between two tries of a version that has failed in a pod which has no proxy meanwhile.
	lossPause = 5 * time.Minute
)

// turning is the part of a step that finds out which version of the profile a proxy may be started from.
type turning struct{ stepping }

// learn notes that the profile's present version works once a proxy of it is ready. It returns the version that worked last if that is another
// one, the versions that worked before that, and whether the present one has failed since.
func (s turning) learn(ctx context.Context) (before *profile.Version, earlier []*profile.Version, bad bool) {
	p := s.choice.Profile
	if p == nil {
		return nil, nil, false
	}
	works := slices.ContainsFunc(s.there, func(c sidecar.Container) bool {
		return c.State == sidecar.Running && versionOf(c) == p.Hash && s.answers[c.ID].probes.WasReady && !s.drains(c.Epoch)
	})
	if works {
		s.noteGood(ctx, s.good.Works(p))
	}
	return s.good.Before(p)
}

// take returns the sandbox's turn, and without one when to ask for it if not now.
func (s turning) take(ctx context.Context) (has rollout.UpgradeSlot, at time.Time) {
	p, want := s.choice.Profile, rollout.ForUpgrade
	if p == nil || s.choice.Ending || s.done() || s.home.Finished(time.Now()) {
		s.look(s.Rollout.Leave(s.key))
		return "", at
	}
	if has = s.Rollout.Join(p, s.key, s.choice.Held); has != "" {
		return has, at
	}
	if s.isFull() || !s.needsTurn() && !s.isFirst(ctx) {
		return "", at
	}
	if s.servesRotated() {
		want = rollout.ForRotation
	}
	if at = s.turnAt(want); time.Now().Before(at) {
		return "", at
	}
	if s.Rollout.Take(p, s.key, want) {
		has = want
	}
	return has, time.Time{}
}

// turnAt returns when the sandbox may ask for a turn, which it uses at once. A version that takes over from a running one is tried soon: nobody notices.
func (s turning) turnAt(want rollout.UpgradeSlot) time.Time {
	f, p := s.memory, s.choice.Profile
	switch {
	case f.bad != p.Hash:
		return f.retryAt()
	case want == rollout.ForUpgrade && s.endsFirst():
		return f.badAt.Add(lossPause)
	}
	return later(f.retryAt(), f.badAt.Add(pauseAt(f.badTurn)))
}

// endsFirst reports whether the running proxy is ended before one of the present version starts.
func (s turning) endsFirst() bool {
	p := s.choice.Profile
	return p.MaxRunning() == 1 || s.memory.noHandover == p.Hash
}

// isFull reports whether a new proxy would have to wait for the end of a draining one. A turn would hold up others for as long. A proxy that
// still starts makes room: it becomes ready, or is ended.
func (s turning) isFull() bool {
	stay := 0
	for _, c := range s.there {
		if c.State == sidecar.Running && (s.answers[c.ID].probes.WasReady || s.drains(c.Epoch)) {
			stay++
		}
	}
	return !s.endsFirst() && stay >= s.choice.Profile.MaxRunning()
}

// isFirst reports whether the sandbox tries the present version of the profile although another one is known to work: nobody has tried it, and
// the node has no proxy of the profile whose upgrade would.
func (s turning) isFirst(ctx context.Context) bool {
	runs := func(c sidecar.Container) bool { return c.State == sidecar.Running && c.Profile == s.choice.Name }
	if s.before == nil || s.bad || slices.ContainsFunc(s.there, runs) {
		return false
	}
	all, err := s.Runtime.List(ctx, "")
	return err == nil && !slices.ContainsFunc(all, runs)
}

// servesRotated reports whether the newest ready proxy has to be replaced for its secrets.
func (s turning) servesRotated() bool {
	for _, c := range slices.Backward(s.there) {
		if c.State == sidecar.Running && s.answers[c.ID].probes.WasReady && !s.drains(c.Epoch) {
			return strings.HasSuffix(c.Hash, outdatedHash)
		}
	}
	return false
}

// version returns the version of the profile that a proxy is started from: the present one if it is known to work, or the sandbox has the turn to
// try it. Otherwise the last version that worked, unless it no longer does.
func (s turning) version(has rollout.UpgradeSlot) *profile.Version {
	p, f := s.choice.Profile, s.memory
	runs := func(hash string) bool {
		return slices.ContainsFunc(s.there, func(c sidecar.Container) bool {
			return c.State == sidecar.Running && c.Hash == hash && !s.drains(c.Epoch)
		})
	}
	if s.before == nil || has == rollout.ForUpgrade || runs(p.Hash) || f.goodStarts >= goodStarts && !runs(s.before.Hash) {
		return p
	}
	return s.before
}
