package sidecars

import (
	"context"
	"errors"
	"maps"
	"time"

	"istio-pod-network-controller/internal/jitter"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/probe"
)

// watchPause is the time until a proxy is watched again after the runtime could not name its process.
const watchPause = 5 * time.Second

// tellPause is the shortest time between two looks at what the runtime tells of a proxy whose process has ended. Later it is one part in tellPart
// of the time since then, and probe.SilentPoll at most.
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
