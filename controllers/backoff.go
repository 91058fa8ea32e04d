package controllers

import (
	"time"

	"k8s.io/client-go/util/workqueue"
)

// Bounds of the wait after a failure. lastBackOff also bounds how long the agent takes to notice that an outage is over.
const (
	firstBackOff = 20 * time.Millisecond
	lastBackOff  = 15 * time.Second
)

// backOff doubles the wait with each failure of an item.
func backOff[T comparable]() workqueue.TypedRateLimiter[T] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[T](firstBackOff, lastBackOff)
}
