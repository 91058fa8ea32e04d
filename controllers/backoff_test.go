package controllers

import (
	"testing"
	"testing/synctest"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
)

// After an outage of hours the agent is back within seconds.
func TestNobodyBacksOffForLong(t *testing.T) {
	b := backOff[ctrl.Request]()
	first := b.When(request())
	var last time.Duration
	for range 100 {
		last = b.When(request())
	}
	if first != firstBackOff || last != 15*time.Second {
		t.Errorf("from %s to %s", first, last)
	}
	if got := watchOptions().RateLimiter.When(request()); got != firstBackOff {
		t.Errorf("the watch starts with %s", got)
	}
}

func TestTheWriterDoesNotBackOffForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWriter(nil, nil, nil)
		defer w.queue.ShutDown()
		for range 100 {
			w.queue.AddRateLimited("uid-1")
		}
		<-time.After(lastBackOff)
		synctest.Wait()
		uid, _ := w.queue.Get()
		w.queue.Done(uid)
		w.queue.AddRateLimited("uid-1")
		<-time.After(lastBackOff)
		synctest.Wait()
		if w.queue.Len() != 1 {
			t.Error("nothing is tried again after the longest wait")
		}
	})
}
