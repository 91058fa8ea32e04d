package controllers

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// retryPause is the time between two checks of a pod that failed.
const retryPause = 15 * time.Second

// Bounds of the time between two searches of the ledger for pods that are due.
const (
	shortestTick = 10 * time.Millisecond
	longestTick  = 250 * time.Millisecond
)

// Verifier checks the rules of the ledger's pods again and again, a few pods at a time:
//
//   - each pod every Programmer.VerifyInterval, at a time of its own (see spread): the Programmer compares the kernel with what the pod
//     asks for, and repairs what differs;
//   - one that failed every retryPause, whichever entrance reported it;
//   - one whose rules were changed by somebody else as its contention says.
//
// With a VerifyInterval of 0 only the last two are checked. The runtime is not asked about a sandbox whose path is known. A sandbox
// whose namespace is gone is forgotten; the other entrances report the pod's next sandbox.
type Verifier struct {
	Programmer *Programmer

	checked map[string]time.Time // by UID: the last check; a pod's first entry is when it was first seen
}

// Start verifies until ctx ends. It is a manager.Runnable.
func (v *Verifier) Start(ctx context.Context) error {
	queue := workqueue.NewTyped[string]() // a pod that waits, or is checked right now, is not queued twice
	var workers sync.WaitGroup
	for range concurrency {
		workers.Go(func() {
			for v.work(ctx, queue) {
			}
		})
	}
	defer workers.Wait()
	defer queue.ShutDown()
	tick := time.NewTicker(v.tick())
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			for _, e := range v.due(now) {
				queue.Add(e.Sandbox.UID)
			}
		}
	}
}

func (v *Verifier) tick() time.Duration {
	if v.Programmer.VerifyInterval == 0 {
		return longestTick
	}
	return min(max(v.Programmer.VerifyInterval/100, shortestTick), longestTick)
}

// due returns the pods that are to be checked now, and takes them as checked.
func (v *Verifier) due(now time.Time) (due []Entry) {
	checked := make(map[string]time.Time, len(v.checked))
	for _, e := range v.Programmer.Ledger.Entries() {
		uid := e.Sandbox.UID
		last, ok := v.checked[uid]
		if !ok {
			last = now
		}
		if at := v.next(e, last); !at.IsZero() && !now.Before(at) {
			due, last = append(due, e), now
		}
		checked[uid] = last
	}
	v.checked = checked
	return due
}

// next returns when a pod that was checked at last is due again; the zero time means never.
func (v *Verifier) next(e Entry, last time.Time) time.Time {
	interval := v.Programmer.VerifyInterval
	switch {
	case e.Retry:
		return last.Add(retryPause)
	case e.contention.active():
		at := e.contention.next(interval)
		if !at.After(last) { // the last check could not be finished
			at = last.Add(retryPause)
		}
		return at
	case interval > 0:
		return spread{interval}.next(e.Sandbox.UID, last)
	}
	return time.Time{}
}

func (v *Verifier) work(ctx context.Context, queue workqueue.TypedInterface[string]) bool {
	uid, stop := queue.Get()
	if stop {
		return false
	}
	defer queue.Done(uid)
	if e, ok := v.Programmer.Ledger.Of(uid); ok && ctx.Err() == nil {
		v.check(ctx, e)
	}
	return true
}

func (v *Verifier) check(ctx context.Context, e Entry) {
	logger := log.FromContext(ctx).WithValues("pod", e.Sandbox.Pod(), "podUID", e.Sandbox.UID, "entrance", Verify)
	ctx, cancel := context.WithTimeout(log.IntoContext(ctx, logger), ensureTimeout)
	defer cancel()
	if _, err := v.Programmer.Ensure(ctx, Verify, e.Sandbox); err != nil && !absent(err) && !Permanent(err) {
		logger.Error(err, "rules not verified")
	}
}
