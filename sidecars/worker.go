package sidecars

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/sidecars/home"
)

// Start works until ctx ends, once no other agent of the node does. It is a manager.Runnable.
func (m *Manager) Start(ctx context.Context) error {
	lock := home.AwaitLock(ctx, m.Homes.Root)
	if lock == nil {
		m.followed.queue.ShutDown()
		return nil
	}
	defer home.Unlock(lock)
	m.duty.hold(lock)
	work(ctx, m)
	m.duty.hold(nil)
	log.FromContext(ctx).Info("the node's proxies run on without this agent")
	return nil
}

// work returns when ctx has ended and all workers have.
func work(ctx context.Context, m *Manager) {
	var working sync.WaitGroup
	for range workers {
		working.Go(func() {
			for next(ctx, m) {
			}
		})
	}
	wait.NonSlidingUntilWithContext(ctx, func(ctx context.Context) { sweep(ctx, m) }, sweepInterval)
	m.followed.queue.ShutDown()
	working.Wait()
}

// next works on one sandbox, and reports whether there may be more.
func next(ctx context.Context, m *Manager) bool {
	key, ended := m.followed.queue.Get()
	if ended {
		return false
	}
	defer m.followed.queue.Done(key)
	if ctx.Err() != nil {
		return true
	}
	e, sandbox, in := m.followed.take(key)
	logger := log.FromContext(ctx).WithValues("pod", sandbox.Pod(), "podUID", key.PodUID, "sandbox", key.Sandbox)
	var again time.Duration
	var err error
	if e == nil {
		again = clean(log.IntoContext(ctx, logger), m, key)
	} else {
		var mem memory
		mem, again, err = reconcile(log.IntoContext(ctx, logger), m, e, sandbox, in)
		e.memory = watch(ctx, m, key, mem)
	}
	if err != nil && ctx.Err() == nil {
		logger.Error(err, "proxy not looked after")
		m.followed.queue.AddRateLimited(key)
		return true
	}
	m.followed.queue.Forget(key)
	if again > 0 {
		m.followed.queue.AddAfter(key, again)
	}
	return true
}
