package sidecars

import (
	"slices"
	"time"

	"istio-pod-network-controller/internal/sidecar"
)

// A pod that moves from one profile to another keeps the proxy to which its rules lead until the other one is ready and the rules have
// changed. Only then the old one finishes its connections.

// left reports whether the pod's rules lead to a proxy that is not in the sandbox.
func (s *stepping) left() bool { return s.choice.Leaves && s.choice.Name == "" }

// leftAt returns when the proxy of an epoch was told to drain, or was left; zero if neither.
func (s *stepping) leftAt(epoch uint32) time.Time {
	if at := s.home.drainedAt(epoch); !at.IsZero() {
		return at
	}
	return s.home.notedAt(factLeft, epoch)
}

// comeBack drops the notes that the pod has left its proxies, if it has come back. They serve again, since they were told nothing.
func (s *stepping) comeBack() {
	if s.left() {
		return
	}
	for _, c := range s.there {
		if s.home.noted(factLeft, c.Epoch) {
			_ = s.home.unnote(factLeft, c.Epoch) // tried again at the next look
		}
	}
}

// held marks the proxies of the profile to which the pod's rules still lead.
func (s *stepping) held(all []Proxy) []Proxy {
	if s.choice.Held == "" {
		return all
	}
	for i, p := range all {
		all[i].Held = slices.ContainsFunc(s.there, func(c sidecar.Container) bool { return c.ID == p.ID && c.Profile == s.choice.Held })
	}
	return all
}
