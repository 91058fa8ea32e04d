package controllers

import (
	"context"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"
)

// retryPause is the time between two looks at pods that failed.
const retryPause = 15 * time.Second

// Sweeper looks at the ledger's pods again, a few at a time:
//
//   - every Interval all of them: the Programmer compares the kernel with what each pod asks for, and repairs what differs;
//   - every retryPause those that failed, whichever entrance they came by. With an Interval of 0 only these.
//
// The runtime is not asked about a sandbox whose path is known. A sandbox whose namespace is gone is forgotten; the pod's next
// sandbox comes by the other entrances.
type Sweeper struct {
	Programmer *Programmer
	Interval   time.Duration
}

// Start sweeps until ctx ends. It is a manager.Runnable.
func (s *Sweeper) Start(ctx context.Context) error {
	retry := time.NewTicker(retryPause)
	defer retry.Stop()
	var all <-chan time.Time
	if s.Interval > 0 {
		tick := time.NewTicker(s.Interval)
		defer tick.Stop()
		all = tick.C
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-all:
			s.sweep(ctx, func(Entry) bool { return true })
		case <-retry.C:
			s.sweep(ctx, func(e Entry) bool { return e.Retry })
		}
	}
}

func (s *Sweeper) sweep(ctx context.Context, due func(Entry) bool) {
	var wg sync.WaitGroup
	free := make(chan struct{}, concurrency)
	for _, e := range s.Programmer.Ledger.Entries() {
		if ctx.Err() != nil {
			break
		}
		if !due(e) {
			continue
		}
		free <- struct{}{}
		wg.Go(func() {
			defer func() { <-free }()
			s.visit(ctx, e)
		})
	}
	wg.Wait()
}

func (s *Sweeper) visit(ctx context.Context, e Entry) {
	logger := log.FromContext(ctx).WithValues("pod", e.Sandbox.Pod(), "podUID", e.Sandbox.UID, "entrance", Sweep)
	ctx, cancel := context.WithTimeout(log.IntoContext(ctx, logger), ensureTimeout)
	defer cancel()
	if _, err := s.Programmer.Ensure(ctx, Sweep, e.Sandbox); err != nil && !absent(err) && !Permanent(err) {
		logger.Error(err, "sweep failed")
	}
}
