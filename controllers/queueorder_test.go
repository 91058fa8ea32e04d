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

// New pods change all the time on a node where no entrance announces sandboxes. What the runtime does not answer has no check wait.
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

// Checks that take longer than their interval are always late. They are due by their last visit, or by an early entrance.
func TestQueue_checksAreLate_changeGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.addPods(300)
		b.finder.sandboxes[manyUID+"1000"] = podnet.Sandbox{ID: "sandbox-1000", NetNS: "/netns/1000"}
		b.VerifyInterval = time.Second
		kernel := newTimed(b, 20*time.Millisecond)
		watch := newWorkWatch(b)
		ctx, cancel := context.WithCancel(t.Context())
		var working sync.WaitGroup
		working.Go(func() { b.work(ctx, t, watch) })
		for range 10 {
			<-time.After(2 * time.Second)
			b.Ledger.ForgetPod(manyUID + "1000")
			kernel.mu.Lock()
			delete(kernel.calls, "/netns/1000")
			kernel.mu.Unlock()
			change(watch, 1000, 1001)
			if took := kernel.until(t, "/netns/1000"); took > 100*time.Millisecond {
				t.Errorf("a change waited %s", took)
			}
		}
		cancel()
		working.Wait()
	})
}
