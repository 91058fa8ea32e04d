package controllers

import (
	"time"

	"k8s.io/client-go/util/workqueue"
)

// Bounds of the wait after a failure. The last one is how late the agent may be once an outage is over.
const (
	firstBackOff = 20 * time.Millisecond
	lastBackOff  = 15 * time.Second
)

// backOff doubles the wait with each failure of an item.
func backOff[T comparable]() workqueue.TypedRateLimiter[T] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[T](firstBackOff, lastBackOff)
}
