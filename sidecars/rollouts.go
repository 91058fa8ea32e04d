package sidecars

import "sync"

// Rollouts bound how a change of a profile reaches the proxies of the node: only so many are upgraded at once, and after a failure no
// more until one has succeeded. The zero value is ready.
type Rollouts struct {
	mu sync.Mutex
	by map[string]*rollout // by profile
}

// rollout is that of one version of a profile.
type rollout struct {
	hash   string
	active map[Key]bool // sandboxes whose proxies are being upgraded
	paused bool
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

// may reports whether a sandbox's proxy may be upgraded now.
func (r *Rollouts) may(p *Profile, key Key) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.of(p)
	if !now.paused && len(now.active) < int(p.Spec.Rollout.MaxParallel) {
		now.active[key] = true
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

// done notes that a sandbox's proxy runs the profile's present version. It reports whether others may be waiting for that.
func (r *Rollouts) done(p *Profile, key Key) (freed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.of(p)
	freed = now.active[key]
	delete(now.active, key)
	now.paused = now.paused && !freed
	return freed
}

// leave forgets a sandbox.
func (r *Rollouts) leave(key Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.by {
		delete(one.active, key)
		if len(one.active) == 0 {
			one.paused = false // whoever failed is gone: nobody else could end the pause
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
