package sidecars

import (
	"slices"
	"sync"
)

// Rollouts bound how a change of a profile reaches the proxies of the node: only so many are upgraded at once, and after a failure no
// more until one has succeeded. The zero value is ready.
type Rollouts struct {
	mu sync.Mutex
	by map[string]*rollout // by profile
}

// rollout is how one version of a profile reaches the node's proxies.
type rollout struct {
	hash   string
	active map[Key]bool // sandboxes whose proxies are being upgraded
	// waiting are the sandboxes that were refused a turn, in the order of their questions.
	waiting []Key
	paused  bool
}

// of returns the roll-out of the profile's present version.
func (r *Rollouts) of(p *Profile) *rollout {
	if r.by == nil {
		r.by = map[string]*rollout{}
	}
	now := r.by[p.Name]
	if now == nil || now.hash != p.Hash {
		now = &rollout{hash: p.Hash, active: map[Key]bool{}}
		r.by[p.Name] = now
	}
	return now
}

// may reports whether a sandbox's proxy may be upgraded now. If not, it waits until done returns it in next.
func (r *Rollouts) may(p *Profile, key Key) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.of(p)
	if !now.paused && len(now.active) < int(p.Spec.Rollout.MaxParallel) {
		now.active[key] = true
	}
	now.forget(key)
	if !now.active[key] {
		now.waiting = append(now.waiting, key)
	}
	return now.active[key]
}

// failed notes that a new proxy of the profile's present version has not become ready, or has ended.
func (r *Rollouts) failed(p *Profile, key Key) {
	if p == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.of(p)
	if pause := p.Spec.Rollout.PauseOnFailure; now.active[key] && (pause == nil || *pause) {
		now.paused = true
	}
}

// done notes that a sandbox's proxy runs the profile's present version. freed reports whether that ends a turn. next are then the sandboxes to
// look at, as many as there are free turns: looking at all that wait, each time, would cost the square of their number.
func (r *Rollouts) done(p *Profile, key Key) (next []Key, freed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.of(p)
	freed = now.active[key]
	delete(now.active, key)
	now.forget(key)
	if !freed {
		return nil, false
	}
	now.paused = false
	free := max(0, int(p.Spec.Rollout.MaxParallel)-len(now.active))
	next = slices.Clone(now.waiting[:min(free, len(now.waiting))])
	now.waiting = now.waiting[len(next):] // a sandbox that is refused again waits again
	return next, true
}

func (r *rollout) forget(key Key) {
	r.waiting = slices.DeleteFunc(r.waiting, func(k Key) bool { return k == key })
}

// leave forgets a sandbox.
func (r *Rollouts) leave(key Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.by {
		delete(one.active, key)
		one.forget(key)
		if len(one.active) == 0 {
			one.paused = false // the proxy that failed is gone: no other could end the pause
		}
	}
}

// paused reports whether the upgrades of a profile are paused after a failure.
func (r *Rollouts) paused(profile string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.by[profile]
	return now != nil && now.paused
}
