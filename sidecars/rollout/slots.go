// Package rollout decides who may upgrade now, and to which version.
//
//	slots.go   sandboxes of the node: slots, the queue, the pause
//	status.go  how far a profile has come in the cluster
//	nodes.go   which nodes may use a version
//	good.go    versions that are known to work on the node
package rollout

import (
	"slices"
	"sync"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/sidecars/profile"
)

// failuresUntilPause is how many pods have to fail in a row before the upgrades pause: one pod alone may fail for a reason of its own. On a node with fewer
// pods it is all of them.
const failuresUntilPause = 3

// Queue bounds how a change of a profile reaches the proxies of the node:
//
//   - A sandbox needs a slot to have its proxy replaced, and there are only so many. The others wait, and get theirs in the order of their questions.
//   - A slot ends with its success, and with its failure. After a failure the sandbox asks again later, and is behind the others.
//   - Once several pods have failed with no success between, the upgrades are paused: only these pods try again, until one succeeds.
//   - While the node is held, nobody is upgraded: the sandboxes are looked at once it no longer is.
//   - A proxy that is replaced for its secrets needs a slot as well, but no pause keeps it from one, and its failure is no reason for one.
//
// The zero value is ready.
type Queue struct {
	mu sync.Mutex
	by map[string]*rollout // by profile
}

// UpgradeSlot is what a sandbox may have its proxy replaced for; "" is no slot.
type UpgradeSlot string

// The slots.
const (
	ForUpgrade  UpgradeSlot = "upgrade"  // for the profile's present version
	ForRotation UpgradeSlot = "rotation" // for its secrets, which have changed
)

// rollout is how one version of a profile reaches the node's proxies.
type rollout struct {
	hash   string
	number uint64
	most   int                 // slots
	pauses bool                // the profile has pauseOnFailure
	held   bool                // the node may not use the version yet
	pods   map[podnet.Key]bool // sandboxes with a proxy of the profile, of any version
	slots  map[podnet.Key]UpgradeSlot
	// waiting are the sandboxes that were refused a slot, in the order of their questions.
	waiting []waiter
	failed  map[podnet.Key]bool // sandboxes whose upgrades have failed since the last success
}

type waiter struct {
	key  podnet.Key
	want UpgradeSlot
}

// of returns the roll-out of a profile, and whether a version is the present one: a step that began before an edit of the profile has an
// older one. A new version begins without failures, and its upgrades share the slots with upgrades that are under way.
func (r *Queue) of(p *profile.Version) (now *rollout, present bool) {
	if r.by == nil {
		r.by = map[string]*rollout{}
	}
	now = r.by[p.Name]
	switch {
	case now == nil:
		now = &rollout{hash: p.Hash, pods: map[podnet.Key]bool{}, slots: map[podnet.Key]UpgradeSlot{}, failed: map[podnet.Key]bool{}}
		r.by[p.Name] = now
	case p.Number < now.number:
		return now, false
	case p.Hash != now.hash:
		now.hash, now.waiting = p.Hash, nil // all sandboxes of the profile are looked at
		clear(now.failed)
	}
	pause := p.Spec.Rollout.PauseOnFailure
	now.number, now.most, now.pauses = p.Number, int(p.Spec.Rollout.MaxParallel), pause == nil || *pause
	return now, true
}

// Join counts a sandbox among those with a proxy of the profile, and returns the slot that it has. held reports whether the node may not use the
// profile's present version yet.
func (r *Queue) Join(p *profile.Version, key podnet.Key, held bool) UpgradeSlot {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, present := r.of(p)
	now.pods[key] = true
	if present {
		now.held = held
	}
	return now.slots[key]
}

// Take reports whether a sandbox's proxy may be replaced now. If not, it waits until its key is returned as the next one.
func (r *Queue) Take(p *profile.Version, key podnet.Key, want UpgradeSlot) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, present := r.of(p)
	if !present {
		return now.slots[key] != "" // its sandbox is looked at again, with the present version
	}
	now.forget(key)
	if now.slots[key] == "" && now.allows(key, want) && len(now.slots) < now.most {
		now.slots[key] = want
	}
	if now.slots[key] == "" {
		now.waiting = append(now.waiting, waiter{key, want})
	}
	return now.slots[key] != ""
}

// Failed notes that a proxy of a version has not become ready, or has ended: this ends the sandbox's slot, if it has one, which is returned. The end
// of an old proxy says nothing of its upgrade. next are the sandboxes to look at, as in Done.
func (r *Queue) Failed(p *profile.Version, key podnet.Key, hash string) (next []podnet.Key, was UpgradeSlot) {
	if p == nil {
		return nil, ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now, _ := r.of(p)
	if was = now.slots[key]; was == "" {
		return nil, ""
	}
	delete(now.slots, key)
	if was == ForUpgrade && hash == now.hash {
		now.failed[key] = true
	}
	return now.next(), was
}

// Done notes that a sandbox's proxy of a version is ready, and that it should have no other. freed reports whether that ends a slot. next are then
// the sandboxes to look at, as many as there are free slots: looking at all that wait, each time, would cost the square of their number.
func (r *Queue) Done(p *profile.Version, key podnet.Key, hash string) (next []podnet.Key, freed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, _ := r.of(p)
	freed = now.slots[key] != ""
	succeeds := hash == now.hash && (freed || now.failed[key])
	if freed || hash == now.hash { // others wait for their upgrade
		delete(now.slots, key)
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

// next returns the sandboxes that have waited longest, one for each free slot. A sandbox that is refused again waits again.
func (r *rollout) next() (out []podnet.Key) {
	free := r.most - len(r.slots)
	r.waiting = slices.DeleteFunc(r.waiting, func(w waiter) bool {
		if len(out) >= free || !r.allows(w.key, w.want) {
			return false
		}
		out = append(out, w.key)
		return true
	})
	return out
}

// allows reports whether a sandbox may have its slot in spite of a pause, or while the node is held.
func (r *rollout) allows(key podnet.Key, want UpgradeSlot) bool {
	return want == ForRotation || !r.held && (r.failed[key] || !r.paused())
}

func (r *rollout) paused() bool {
	return r.pauses && len(r.failed) > 0 && len(r.failed) >= min(failuresUntilPause, len(r.pods))
}

func (r *rollout) forget(key podnet.Key) {
	r.waiting = slices.DeleteFunc(r.waiting, func(w waiter) bool { return w.key == key })
}

// Leave forgets a sandbox. next are the sandboxes to look at, as in Done.
func (r *Queue) Leave(key podnet.Key) (next []podnet.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.by {
		holds := one.slots[key] != "" || one.failed[key]
		delete(one.pods, key)
		delete(one.slots, key)
		delete(one.failed, key) // no success of it can end the pause
		one.forget(key)
		if holds {
			next = append(next, one.next()...)
		}
	}
	return next
}

// Paused reports whether upgrades of a profile wait, after failures, until one succeeds.
func (r *Queue) Paused(profile string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.by[profile]
	return now != nil && now.paused()
}
