package sidecars

import (
	"context"
	"errors"
	"time"

	"istio-pod-network-controller/internal/jitter"
	"istio-pod-network-controller/internal/sidecar"
)

// watchPause is the time until a proxy is watched again after the runtime could not name its process.
const watchPause = 5 * time.Second

// watch has a sandbox looked at as soon as one of its proxies ends. ctx is Start's.
func (m *Manager) watch(ctx context.Context, key Key, f *followed) {
	for id, a := range f.answers {
		if a.watched || a.ended {
			continue
		}
		a.watched = true
		f.answers[id] = a
		go func() {
			for err := m.Runtime.Wait(ctx, id); err != nil && !errors.Is(err, sidecar.ErrGone); err = m.Runtime.Wait(ctx, id) {
				if !jitter.Wait(ctx, watchPause) {
					return
				}
			}
			m.mu.Lock()
			if f := m.known[key]; f != nil {
				f.list.ended = true
			}
			m.mu.Unlock()
			m.queue.Add(key)
		}()
	}
}

