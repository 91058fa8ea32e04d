package controllers

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// checked is what checkers have done with pods, of which some are stuck for ten seconds.
type checked struct {
	mu        sync.Mutex
	done      map[string]time.Duration
	now, most int
}

func runCheckers(t *testing.T, stuck, healthy int) *checked {
	t.Helper()
	began, seen := time.Now(), &checked{done: map[string]time.Duration{}}
	queue := workqueue.NewTyped[string]()
	c := &checkers{queue: queue, check: func(uid string) {
		seen.mu.Lock()
		seen.now++
		seen.most = max(seen.most, seen.now)
		seen.mu.Unlock()
		if strings.HasPrefix(uid, "stuck") {
			<-time.After(ensureTimeout)
		} else {
			<-time.After(time.Millisecond)
		}
		seen.mu.Lock()
		defer seen.mu.Unlock()
		seen.now--
		seen.done[uid] = time.Since(began)
	}}
	for i := range stuck {
		queue.Add(fmt.Sprint("stuck-", i))
	}
	for i := range healthy {
		queue.Add(fmt.Sprint("healthy-", i))
	}
	c.start()
	<-time.After(time.Minute)
	queue.ShutDown()
	c.working.Wait()
	if c.workers != 0 {
		t.Errorf("%d workers are left", c.workers)
	}
	return seen
}

func TestPodsAreCheckedOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if seen := runCheckers(t, 0, 250); len(seen.done) != 250 || seen.most != 1 {
			t.Errorf("%d pods checked, up to %d at once", len(seen.done), seen.most)
		}
	})
}

func TestStuckPodsDelayOthersALittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const stuck = mostCheckers - 1
		seen := runCheckers(t, stuck, 100)
		for uid, after := range seen.done {
			if strings.HasPrefix(uid, "healthy") && after > stuck*longCheck+time.Second {
				t.Errorf("%s was checked after %s", uid, after)
			}
		}
		if len(seen.done) != stuck+100 {
			t.Errorf("%d pods checked", len(seen.done))
		}
	})
}

func TestMoreStuckPodsThanCheckersDelayOthersButLoseNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const stuck = 3 * mostCheckers
		if seen := runCheckers(t, stuck, 100); len(seen.done) != stuck+100 || seen.most != mostCheckers {
			t.Errorf("%d pods checked, up to %d at once", len(seen.done), seen.most)
		}
	})
}
