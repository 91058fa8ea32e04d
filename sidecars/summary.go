package sidecars

import "istio-pod-network-controller/api/v1alpha1"

// Summary is how far a profile has reached the node's proxies.
type Summary struct {
	Generation             int64
	Pods, Upgraded, Failed int
	Paused                 bool
	// Message is why one of them failed, or "".
	Message string
}

// show notes how a sandbox's proxy is, and sums up if that has changed.
func (s *stepping) show(status Status) {
	now := shown{profile: s.choice.Name}
	if p := s.choice.Profile; p != nil {
		now.generation = p.Generation
		now.upgraded = status.Ready && status.Hash == p.Hash
		now.failed = !now.upgraded && s.why != ""
	}
	now.failed = now.failed || status.State == v1alpha1.Refused
	if now.failed {
		now.message = s.sandbox.Pod() + ": " + status.Message
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.shown
	if before == now || s.known[s.key] != s.followed {
		return
	}
	s.shown = now
	for _, profile := range []string{before.profile, now.profile} {
		if profile != "" {
			s.summarize(profile)
		}
	}
}

// summarize reports the sum of the node's proxies of a profile. m.mu is held.
func (m *Manager) summarize(profile string) {
	var sum Summary
	for _, f := range m.known {
		if f.shown.profile != profile {
			continue
		}
		sum.Pods++
		sum.Generation = max(sum.Generation, f.shown.generation)
		if f.shown.upgraded {
			sum.Upgraded++
		}
		if f.shown.failed {
			sum.Failed++
		}
		if f.shown.failed && (sum.Message == "" || f.shown.message < sum.Message) {
			sum.Message = f.shown.message
		}
	}
	sum.Paused = m.Rollout.paused(profile)
	m.Summaries.Summarize(profile, sum)
}
