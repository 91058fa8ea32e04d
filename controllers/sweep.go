package controllers

import (
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"
)

// Sweeper looks for drift: every Interval it has the Programmer compare each programmed sandbox with the kernel and repair
// what differs. The runtime is not asked; a sandbox whose namespace is gone is forgotten, its successor has its own events.
type Sweeper struct {
	Programmer *Programmer
	Interval   time.Duration
}

// Start sweeps until ctx ends. It is a manager.Runnable.
func (s *Sweeper) Start(ctx context.Context) error {
	if s.Interval <= 0 {
		return nil
	}
	tick := time.NewTicker(s.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			s.sweep(ctx)
		}
	}
}

func (s *Sweeper) sweep(ctx context.Context) {
	for _, e := range s.Programmer.Ledger.Entries() {
		if e.State != Programmed || ctx.Err() != nil {
			continue
		}
		logger := log.FromContext(ctx).WithValues("pod", e.Sandbox.Pod(), "podUID", e.Sandbox.UID, "entrance", Sweep)
		ensureCtx, cancel := context.WithTimeout(log.IntoContext(ctx, logger), ensureTimeout)
		_, err := s.Programmer.Ensure(ensureCtx, Sweep, e.Sandbox)
		cancel()
		if err != nil && !absent(err) && !Permanent(err) {
			logger.Error(err, "sweep failed")
		}
	}
}
