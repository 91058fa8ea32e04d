package sidecars

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/internal/sidecar"
)

const (
	// goodStarts is how many proxies of the last good version are started in a row, none of which becomes ready, before the present one is tried.
	goodStarts = 3
	// lossPause is the time between two tries of a version that has failed in a pod which has no proxy meanwhile.
	lossPause = 5 * time.Minute
)

// learnGood notes that the profile's version works once a proxy of it is ready, and finds out which one a proxy is started from otherwise.
func (s *stepping) learnGood(ctx context.Context) {
	p := s.choice.Profile
	if p == nil {
		return
	}
	works := slices.ContainsFunc(s.there, func(c sidecar.Container) bool {
		return c.State == sidecar.Running && versionOf(c) == p.Hash && s.answers[c.ID].ready && !s.drains(c.Epoch)
	})
	if works {
		s.noteGood(ctx, s.good.works(p))
	}
	s.before, s.bad = s.good.before(p)
}

func (s stepping) noteGood(ctx context.Context, err error) {
	if err != nil {
		log.FromContext(ctx).Error(err, "an agent that starts will not know which version of a profile works", "profile", s.choice.Name)
	}
}

// takeTurn returns the sandbox's turn, and without one when to ask for it if not now.
func (s stepping) takeTurn(ctx context.Context) (has turn, at time.Time) {
	p, want := s.choice.Profile, upgradeTurn
	if p == nil || s.choice.Ending || s.done() || s.home.finished(time.Now()) {
		s.look(s.Rollout.leave(s.key))
		return "", at
	}
	if has = s.Rollout.join(p, s.key); has != "" {
		return has, at
	}
	if !s.needsTurn() && !s.isFirst(ctx) {
		return "", at
	}
	if s.servesRotated() {
		want = rotationTurn
	}
	if at = s.turnAt(want); time.Now().Before(at) {
		return "", at
	}
	if s.Rollout.may(p, s.key, want) {
		has = want
	}
	return has, time.Time{}
}

// turnAt returns when the sandbox may ask for a turn, which it uses at once. A version that takes over from a running one is tried soon: nobody notices.
func (s stepping) turnAt(want turn) time.Time {
	f, p := s.memory, s.choice.Profile
	switch {
	case f.bad != p.Hash:
		return f.retryAt()
	case want == upgradeTurn && (p.maxRunning() == 1 || f.noHandover == p.Hash):
		return f.badAt.Add(lossPause)
	}
	return later(f.retryAt(), f.badAt.Add(pauseAt(f.badTurn)))
}

// look has sandboxes looked at.
func (s stepping) look(next []Key) {
	for _, key := range next {
		s.queue.Add(key)
	}
}

// isFirst reports whether the sandbox tries the present version of the profile although another one is known to work: nobody has tried it, and
// the node has no proxy of the profile whose upgrade would.
func (s stepping) isFirst(ctx context.Context) bool {
	runs := func(c sidecar.Container) bool { return c.State == sidecar.Running && c.Profile == s.choice.Name }
	if s.before == nil || s.bad || slices.ContainsFunc(s.there, runs) {
		return false
	}
	all, err := s.Runtime.List(ctx, "")
	return err == nil && !slices.ContainsFunc(all, runs)
}

// servesRotated reports whether the newest ready proxy has to be replaced for its secrets.
func (v view) servesRotated() bool {
	for _, c := range slices.Backward(v.there) {
		if c.State == sidecar.Running && v.answers[c.ID].ready && !v.drains(c.Epoch) {
			return strings.HasSuffix(c.Hash, outdatedHash)
		}
	}
	return false
}

// version returns the version of the profile that a proxy is started from: the present one if it is known to work, or the sandbox has the turn to
// try it. Otherwise the last version that worked, unless it no longer does.
func (v view) version(f *followed, has turn) *Profile {
	p := v.choice.Profile
	runs := func(hash string) bool {
		return slices.ContainsFunc(v.there, func(c sidecar.Container) bool {
			return c.State == sidecar.Running && c.Hash == hash && !v.drains(c.Epoch)
		})
	}
	if v.before == nil || has == upgradeTurn || runs(p.Hash) || f.goodStarts >= goodStarts && !runs(v.before.Hash) {
		return p
	}
	return v.before
}

// madeFrom returns the version of the profile that a proxy was made from, as far as it is known.
func (v view) madeFrom(c sidecar.Container) *Profile {
	if v.before != nil && versionOf(c) == v.before.Hash {
		return v.before
	}
	return v.choice.Profile
}

// standIn says why a proxy is not of the profile's present version, or "" if that is tried yet.
func (v view) standIn(f *followed, c sidecar.Container) string {
	p := v.choice.Profile
	if v.before == nil || versionOf(c) != v.before.Hash || !v.bad && f.instead != p.Hash {
		return ""
	}
	return fmt.Sprintf("the profile's version %s is not known to work on this node: the proxy is of %s, the last one that was ready here", p.Hash, v.before.Hash)
}
