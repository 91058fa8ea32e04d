package sidecars

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
	now := shown{profile: s.choice.Name, generation: s.choice.Generation}
	if p := s.choice.Profile; p != nil {
		now.upgraded = status.Ready && status.Hash == p.Hash
		now.failed = !now.upgraded && s.why != ""
	}
	now.failed = now.failed || s.choice.Refusal != ""
	if now.failed {
		now.message = s.sandbox.Pod() + ": " + status.Message
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.shown
	if before == now {
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
	var all []shown
	for _, f := range m.known {
		if f.shown.profile == profile {
			all = append(all, f.shown)
		}
	}
	sum := sumOf(all)
	sum.Paused = m.Rollout.paused(profile)
	m.Summaries.Summarize(profile, sum)
}

// sumOf sums up the proxies of one profile. Those that were not looked at since it changed count as pods only.
func sumOf(all []shown) (sum Summary) {
	sum.Pods = len(all)
	for _, one := range all {
		sum.Generation = max(sum.Generation, one.generation)
	}
	for _, one := range all {
		if one.generation != sum.Generation {
			continue
		}
		if one.upgraded {
			sum.Upgraded++
		}
		if one.failed {
			sum.Failed++
		}
		if one.failed && (sum.Message == "" || one.message < sum.Message) {
			sum.Message = one.message
		}
	}
	return sum
}
