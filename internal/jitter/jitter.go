// Package jitter spreads the retries of agents over time: what they all lose at one moment they must not all ask for at the next.
package jitter

import (
	"context"
	"math/rand/v2"
	"time"
)

// Full returns a random wait of more than 0 and at most bound: "full jitter" of an exponential back-off, whose bound the caller doubles.
// wait.Backoff and workqueue's limiters keep the bound as a minimum, and so keep agents in step.
func Full(bound time.Duration) time.Duration {
	if bound <= 0 {
		return 0
	}
	return 1 + rand.N(bound) //nolint:gosec // a wait, not a secret
}

// First and last bound of the wait between attempts.
const first, last = 250 * time.Millisecond, 15 * time.Second

// Bound returns the bound of the wait after so many failures in a row: it doubles from 250 ms to 15 s.
func Bound(failures int) time.Duration { return min(first<<min(max(failures-1, 0), 10), last) }

// Wait waits for Full(bound). It reports whether ctx has not ended meanwhile.
func Wait(ctx context.Context, bound time.Duration) bool {
	timer := time.NewTimer(Full(bound))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}

// Bounds is a limiter of a work queue (workqueue.TypedRateLimiter), whose waits become bounds.
type Bounds[T comparable] interface {
	When(item T) time.Duration
	Forget(item T)
	NumRequeues(item T) int
}

// Limiter is a limiter of a work queue that spreads the waits of another one.
type Limiter[T comparable] struct{ Bounds[T] }

// When returns a random wait within the bound.
func (l Limiter[T]) When(item T) time.Duration { return Full(l.Bounds.When(item)) }
