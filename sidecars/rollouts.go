package sidecars

import (
	"slices"
	"sync"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/sidecars/profile"
)

// pauseAfter is how many pods have to fail in a row before the upgrades pause: one pod alone may fail for a reason of its own. On a node with fewer
// pods it is all of them.
const pauseAfter = 3

// Rollouts bound how a change of a profile reaches the proxies of the node:
//
//   - A sandbox needs a turn to have its proxy replaced, and there are only so many. The others wait, and get theirs in the order of their questions.
//   - A turn ends with its success, and with its failure. After a failure the sandbox asks again later, and is behind the others.
//   - Once several pods have failed with no success between, the upgrades are paused: only these pods try again, until one succeeds.
//   - While the node is held, nobody is upgraded: the sandboxes are looked at once it no longer is.
//   - A proxy that is replaced for its secrets needs a turn as well, but no pause keeps it from one, and its failure is no reason for one.
//
// The zero value is ready.
type Rollouts struct {
	mu sync.Mutex
	by map[string]*rollout // by profile
}

// turn is what a sandbox may have its proxy replaced for; "" is no turn.
type turn string

const (
	upgradeTurn  turn = "upgrade"  // for the profile's present version
	rotationTurn turn = "rotation" // for its secrets, which have changed
)

// rollout is how one version of a profile reaches the node's proxies.
type rollout struct {
	hash   string
	most   int                 // turns
	pauses bool                // the profile has pauseOnFailure
	held   bool                // the node may not use the version yet
	pods   map[podnet.Key]bool // sandboxes with a proxy of the profile, of any version
	turns  map[podnet.Key]turn
	// waiting are the sandboxes that were refused a turn, in the order of their questions.
	waiting []waiter
	failed  map[podnet.Key]bool // sandboxes whose upgrades have failed since the last success
}

type waiter struct {
	key  podnet.Key
	want turn
}

// of returns the roll-out of the profile's present version.
func (r *Rollouts) of(p *profile.Version) *rollout {
	if r.by == nil {
		r.by = map[string]*rollout{}
	}
	now := r.by[p.Name]
	if now == nil || now.hash != p.Hash {
		pods := map[podnet.Key]bool{}
		if now != nil {
			pods = now.pods
		}
		now = &rollout{hash: p.Hash, pods: pods, turns: map[podnet.Key]turn{}, failed: map[podnet.Key]bool{}}
		r.by[p.Name] = now
	}
	pause := p.Spec.Rollout.PauseOnFailure
	now.most, now.pauses = int(p.Spec.Rollout.MaxParallel), pause == nil || *pause
	return now
}

// join counts a sandbox among those with a proxy of the profile, and returns the turn that it has. held reports whether the node may not use the
// profile's present version yet.
func (r *Rollouts) join(p *profile.Version, key podnet.Key, held bool) turn {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.of(p)
	now.pods[key], now.held = true, held
	return now.turns[key]
}

// may reports whether a sandbox's proxy may be replaced now. If not, it waits until its key is returned as the next one.
func (r *Rollouts) may(p *profile.Version, key podnet.Key, want turn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.of(p)
	now.forget(key)
	if now.turns[key] == "" && now.allows(key, want) && len(now.turns) < now.most {
		now.turns[key] = want
	}
	if now.turns[key] == "" {
		now.waiting = append(now.waiting, waiter{key, want})
	}
	return now.turns[key] != ""
}

// failed notes that a proxy of a version has not become ready, or has ended: this ends the sandbox's turn, if it has one, which is returned. The end
// of an old proxy says nothing of its upgrade. next are the sandboxes to look at, as in done.
func (r *Rollouts) failed(p *profile.Version, key podnet.Key, hash string) (next []podnet.Key, was turn) {
	if p == nil {
		return nil, ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.of(p)
	if was = now.turns[key]; was == "" {
		return nil, ""
	}
	delete(now.turns, key)
	if was == upgradeTurn && hash == p.Hash {
		now.failed[key] = true
	}
	return now.next(), was
}

// done notes that a sandbox's proxy of a version is ready, and that it should have no other. freed reports whether that ends a turn. next are then
// the sandboxes to look at, as many as there are free turns: looking at all that wait, each time, would cost the square of their number.
func (r *Rollouts) done(p *profile.Version, key podnet.Key, hash string) (next []podnet.Key, freed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.of(p)
	freed = now.turns[key] != ""
	succeeds := hash == p.Hash && (freed || now.failed[key])
	if freed || hash == p.Hash { // others wait for their upgrade
		delete(now.turns, key)
		now.forget(key)
	}
	if succeeds {
		clear(now.failed)
	}
	if !freed && !succeeds {
		return nil, false
	}
	return now.next(), freed
}

// next returns the sandboxes that have waited longest, one for each free turn. A sandbox that is refused again waits again.
func (r *rollout) next() (out []podnet.Key) {
	free := r.most - len(r.turns)
	r.waiting = slices.DeleteFunc(r.waiting, func(w waiter) bool {
		if len(out) >= free || !r.allows(w.key, w.want) {
			return false
		}
		out = append(out, w.key)
		return true
	})
	return out
}

// allows reports whether a sandbox may have its turn in spite of a pause, or while the node is held.
func (r *rollout) allows(key podnet.Key, want turn) bool {
	return want == rotationTurn || !r.held && (r.failed[key] || !r.paused())
}

func (r *rollout) paused() bool {
	return r.pauses && len(r.failed) > 0 && len(r.failed) >= min(pauseAfter, len(r.pods))
}

func (r *rollout) forget(key podnet.Key) {
	r.waiting = slices.DeleteFunc(r.waiting, func(w waiter) bool { return w.key == key })
}

// leave forgets a sandbox. next are the sandboxes to look at, as in done.
func (r *Rollouts) leave(key podnet.Key) (next []podnet.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.by {
		holds := one.turns[key] != "" || one.failed[key]
		delete(one.pods, key)
		delete(one.turns, key)
		delete(one.failed, key) // no success of it can end the pause
		one.forget(key)
		if holds {
			next = append(next, one.next()...)
		}
	}
	return next
}

func (r *Rollouts) paused(profile string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.by[profile]
	return now != nil && now.paused()
}
