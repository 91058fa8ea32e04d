package jitter

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/util/workqueue"
)

func newLimiter(first time.Duration) workqueue.TypedRateLimiter[string] {
	return Limiter[string]{workqueue.NewTypedItemExponentialFailureRateLimiter[string](first, 15*time.Second)}
}

// retries returns when an agent tries again in an outage, as waits since its begin.
func retries(n int) (at []time.Duration) {
	l, sum := newLimiter(100*time.Millisecond), time.Duration(0)
	for range n {
		sum += l.When("the API server")
		at = append(at, sum)
	}
	return at
}

func TestLimiter_twoAgentsInOneOutage_tryAtDifferentTimes(t *testing.T) {
	one, other := retries(30), retries(30)
	for i := range one {
		if slices.Contains(other, one[i]) {
			t.Errorf("attempt %d: both try after %s", i+1, one[i])
		}
	}
}

func TestLimiter_failuresInARow_waitWithinADoublingBound(t *testing.T) {
	l, bound := newLimiter(time.Second), time.Second
	for i := range 20 {
		if wait := l.When("a pod"); wait <= 0 || wait > bound {
			t.Errorf("failure %d: waits %s, bound %s", i+1, wait, bound)
		}
		bound = min(2*bound, 15*time.Second)
	}
	l.Forget("a pod")
	if wait := l.When("a pod"); wait > time.Second {
		t.Errorf("after a success: waits %s", wait)
	}
}

func TestFull_manyWaits_coverTheWholeBound(t *testing.T) {
	const bound, waits = 10 * time.Second, 10000
	var each [10]int
	for range waits {
		wait := Full(bound)
		if wait <= 0 || wait > bound {
			t.Fatalf("waits %s, bound %s", wait, bound)
		}
		each[(wait-1)/time.Second]++
	}
	for i, n := range each {
		if n < waits/20 || n > waits/5 {
			t.Errorf("%d of %d waits end in second %d", n, waits, i)
		}
	}
	if Full(0) != 0 {
		t.Error("waits without a bound")
	}
}

func TestWait_contextEnds_returnsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if began := time.Now(); Wait(ctx, 1000*time.Hour) || time.Since(began) > time.Second {
			t.Errorf("returned after %s", time.Since(began))
		}
		if began := time.Now(); !Wait(t.Context(), time.Second) || time.Since(began) > time.Second {
			t.Errorf("returned after %s", time.Since(began))
		}
	})
}
