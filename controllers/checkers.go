package controllers

import (
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// While a check takes longer than longCheck, another worker goes on with the other pods. There are at most mostCheckers.
const (
	longCheck    = 50 * time.Millisecond
	mostCheckers = 32
)

// checkers work through a queue of pods, usually one after the other: to wake several threads for checks of 0.2 ms costs more than the
// checks. Pods that keep the kernel busy do not delay the others.
type checkers struct {
	queue workqueue.TypedInterface[string]
	check func(uid string)

	working sync.WaitGroup
	mu      sync.Mutex
	workers int
}

// start starts a worker, which ends with the queue. It reports whether there may be one more.
func (c *checkers) start() (started bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.workers == mostCheckers {
		return false
	}
	c.workers++
	c.working.Go(func() {
		c.run()
		c.mu.Lock()
		c.workers--
		c.mu.Unlock()
	})
	return true
}

func (c *checkers) run() {
	for {
		uid, stop := c.queue.Get()
		if stop {
			return
		}
		replaced := make(chan bool, 1)
		late := time.AfterFunc(longCheck, func() { replaced <- c.start() })
		c.check(uid)
		c.queue.Done(uid)
		if !late.Stop() && <-replaced {
			return
		}
	}
}
