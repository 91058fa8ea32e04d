package sidecars

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/internal/jitter"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/home"
	"istio-pod-network-controller/sidecars/probe"
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

// watchPause is the time until a proxy is watched again after the runtime could not name its process.
const watchPause = 5 * time.Second

// A runtime may list a proxy as running for a while after its process has ended. It is asked again after tellPause, later after one part in tellPart
// of the time since the end, and at the latest after probe.SilentPoll.
const (
	tellPause = 20 * time.Millisecond
	tellPart  = 2
)

// watch has a sandbox looked at as soon as one of its proxies ends. ctx is Start's.
func watch(ctx context.Context, m *Manager, key podnet.Key, mem memory) memory {
	mem.proxies = maps.Clone(mem.proxies)
	for id, p := range mem.proxies {
		if p.watched || p.exit.noted {
			continue
		}
		p.watched = true
		mem.proxies[id] = p
		go func() {
			err := m.Runtime.Wait(ctx, id)
			for ; err != nil && !errors.Is(err, sidecar.ErrGone); err = m.Runtime.Wait(ctx, id) {
				if !jitter.Wait(ctx, watchPause) {
					return
				}
			}
			m.followed.update(key, func(e *entry) {
				if e.inbox.exits == nil {
					e.inbox.exits = map[string]processExit{}
				}
				e.inbox.exits[id] = processExit{time.Now(), err == nil}
			})
			m.followed.queue.Add(key)
		}()
	}
	return mem
}

// tellAgain returns the pause until the next reconcile: shorter than again while the runtime still lists an ended proxy as running.
func tellAgain(o observed, again time.Duration) time.Duration {
	for _, c := range o.containers {
		if p := o.proxies[c.ID]; p.exit.unreported {
			again = min(again, max(tellPause, time.Since(p.exit.at)/tellPart), probe.SilentPoll)
		}
	}
	return again
}
