package controllers

import (
	"context"
	"errors"
	"maps"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/internal/podnet"
)

// retryPause is the time between two checks of a pod that failed.
const retryPause = 15 * time.Second

// Bounds of the time between two searches of the ledger for pods that are due. Those that are due are checked one after the other: to wake
// up for each costs more than its check.
const (
	shortestTick = 10 * time.Millisecond
	longestTick  = time.Second
)

// Verifier checks the rules of the ledger's pods again and again:
//
//   - each pod every Programmer.VerifyInterval, at a time of its own (see spread): the Programmer compares the kernel with what the pod
//     asks for, and repairs what differs;
//   - one that failed every retryPause, whichever entrance reported it;
//   - one whose rules were changed by somebody else as its contention says.
//
// With a VerifyInterval of 0 only the last two are checked. The runtime is not asked about a sandbox whose path is known. A sandbox
// whose namespace is gone is forgotten, and the pod's next one is looked for once: changes of the pod that came before were left to the
// Verifier. If the next sandbox does not run yet, the other entrances report it.
type Verifier struct {
	Programmer *Programmer

	plans map[string]plan // by UID
}

// plan is when a pod was checked, or first seen, and when its usual check is due. It is computed once a check: due runs every tick.
type plan struct{ last, usual time.Time }

// Start verifies until ctx ends. It is a manager.Runnable.
func (v *Verifier) Start(ctx context.Context) error {
	queue := workqueue.NewTyped[string]() // a pod that waits, or is checked right now, is not queued twice
	workers := &checkers{queue: queue, check: func(uid string) { v.checkPod(ctx, uid) }}
	workers.start()
	defer workers.working.Wait()
	defer queue.ShutDown()
	tick := time.NewTicker(v.tick())
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			for _, uid := range v.due(now) {
				queue.Add(uid)
			}
		}
	}
}

func (v *Verifier) tick() time.Duration {
	if v.Programmer.VerifyInterval == 0 {
		return longestTick
	}
	return min(max(v.Programmer.VerifyInterval/10, shortestTick), longestTick)
}

// due returns the UIDs of the pods that are to be checked now, and takes them as checked.
func (v *Verifier) due(now time.Time) (due []string) {
	if v.plans == nil {
		v.plans = map[string]plan{}
	}
	pods := v.Programmer.Ledger.each(func(uid string, e Entry) {
		p, ok := v.plans[uid]
		if !ok {
			p = v.plan(uid, now)
			v.plans[uid] = p
		}
		if at := v.next(e, p); !at.IsZero() && !now.Before(at) {
			due = append(due, uid)
			v.plans[uid] = v.plan(uid, now)
		}
	})
	if len(v.plans) > pods {
		maps.DeleteFunc(v.plans, func(uid string, _ plan) bool { _, ok := v.Programmer.Ledger.Of(uid); return !ok })
	}
	return due
}

// plan returns the plan of a pod that is checked now.
func (v *Verifier) plan(uid string, now time.Time) plan {
	p := plan{last: now}
	if interval := v.Programmer.VerifyInterval; interval > 0 {
		p.usual = now.Add(spread{interval}.next(uid, now).Sub(now)) // unlike next's time, this one does not follow a clock that is set
	}
	return p
}

// next returns when a pod is due again; the zero time means never.
func (v *Verifier) next(e Entry, p plan) time.Time {
	switch {
	case e.Retry:
		return p.last.Add(retryPause)
	case e.contention.active():
		at := e.contention.next(v.Programmer.VerifyInterval)
		if !at.After(p.last) { // the last check could not be finished
			at = p.last.Add(retryPause)
		}
		return at
	}
	return p.usual
}

func (v *Verifier) checkPod(ctx context.Context, uid string) {
	if e, ok := v.Programmer.Ledger.Of(uid); ok && ctx.Err() == nil {
		v.check(ctx, e)
	}
}

func (v *Verifier) check(ctx context.Context, e Entry) {
	logger := log.FromContext(ctx).WithValues("pod", e.Sandbox.Pod(), "podUID", e.Sandbox.UID, "entrance", Verify)
	ctx, cancel := context.WithTimeout(log.IntoContext(ctx, logger), ensureTimeout)
	defer cancel()
	_, err := v.Programmer.Ensure(ctx, Verify, e.Sandbox)
	if errors.Is(err, podnet.ErrGone) {
		pod := podnet.Sandbox{Namespace: e.Sandbox.Namespace, Name: e.Sandbox.Name, UID: e.Sandbox.UID}
		_, err = v.Programmer.Ensure(ctx, Verify, pod)
	}
	if err != nil && !absent(err) && !Permanent(err) {
		logger.Error(err, "rules not verified")
	}
}
