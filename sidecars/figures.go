package sidecars

import (
	"sync"

	"istio-pod-network-controller/api/v1alpha1"
)

// Health is how a pod's own proxy is, in fewer words than v1alpha1.State.
type Health string

// The healths. A proxy that waits for its image is starting.
const (
	HealthReady    Health = "ready"
	HealthStarting Health = "starting"
	HealthSilent   Health = "silent"  // it runs and no longer answers
	HealthFailed   Health = "failed"  // none is ready since the last one ended or could not be started
	HealthRefused  Health = "refused" // the pod cannot have one of its profile
	HealthEnded    Health = "ended"
)

func healthOf(s Status) Health {
	switch {
	case s.State == v1alpha1.Ended:
		return HealthEnded
	case s.State == v1alpha1.Refused:
		return HealthRefused
	case s.Ready:
		return HealthReady
	case s.State == v1alpha1.Running, s.State == v1alpha1.Upgrading:
		return HealthSilent
	case s.Failure != "":
		return HealthFailed
	}
	return HealthStarting
}

// Figures are how the node's own proxies of a profile are, and what became of them since the agent's start.
type Figures struct {
	// Pods counts sandboxes by the health of their proxies, with zeros.
	Pods map[Health]int
	// Paused reports whether upgrades wait after a failure.
	Paused bool
	// Restarts counts proxies that ended without being told to, or hung.
	Restarts uint64
	// Upgraded counts the proxies of a new version that took over from an old one. Failed counts new proxies that did not become ready beside it.
	Upgraded, Failed uint64
}

// counts has what became of proxies, by profile.
type counts struct {
	mu sync.Mutex
	by map[string]Figures
}

// change changes the figures of a sandbox's profile. A name without a profile has no figures: pods choose names, and figures are kept.
func (c *counts) change(of Choice, change func(*Figures)) {
	if of.Profile == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by == nil {
		c.by = map[string]Figures{}
	}
	figures := c.by[of.Name]
	change(&figures)
	c.by[of.Name] = figures
}

func (c *counts) of(name string) Figures {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.by[name]
}
