package controllers

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"istio-pod-network-controller/internal/podnet"
)

// New pods change all the time on a node where no hook announces sandboxes. What the runtime does not answer has no check wait.
func TestQueue_slowRuntime_delaysNoCheck(t *testing.T) {
	for name, takes := range map[string]time.Duration{"it hangs": time.Hour, "it answers late": kernelLimit - 100*time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				b.addPods(20)
				b.Finder, b.VerifyInterval = slowFinder{takes}, 10*time.Second
				kernel := newTimed(b, time.Millisecond)
				watch := newWorkWatch(b)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				var working sync.WaitGroup
				working.Go(func() { b.work(ctx, t, watch) })
				for ctx.Err() == nil {
					change(watch, 1000, 1056)
					<-time.After(100 * time.Millisecond)
				}
				working.Wait()
				for i := range 20 {
					kernel.checkedInTime(t, fmt.Sprint("/netns/", i), b.VerifyInterval)
				}
			})
		})
	}
}

// Checks that take longer than their interval are always late. They are due by their last visit, or by an early hook.
func TestQueue_checksAreLate_changeGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.addPods(300)
		for i := range 10 {
			b.finder.sandboxes[fmt.Sprint(manyUID, 1000+i)] = podnet.Sandbox{ID: fmt.Sprint("sandbox-", 1000+i), NetNS: fmt.Sprint("/netns/", 1000+i)}
		}
		b.VerifyInterval = time.Second
		kernel := newTimed(b, 20*time.Millisecond)
		watch := newWorkWatch(b)
		ctx, cancel := context.WithCancel(t.Context())
		var working sync.WaitGroup
		working.Go(func() { b.work(ctx, t, watch) })
		for i := range 10 {
			<-time.After(2 * time.Second)
			change(watch, 1000+i, 1001+i)
			if took := kernel.until(t, fmt.Sprint("/netns/", 1000+i)); took > 100*time.Millisecond {
				t.Errorf("a change waited %s", took)
			}
		}
		cancel()
		working.Wait()
	})
}
