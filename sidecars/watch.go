package sidecars

import (
	"context"
	"errors"
	"time"

	"istio-pod-network-controller/internal/jitter"
	"istio-pod-network-controller/internal/sidecar"
)

// watchPause is the time until a proxy is watched again after the runtime could not say which process is its.
const watchPause = 5 * time.Second

// watch has a sandbox looked at as soon as one of its proxies ends. ctx is the Manager's.
func (m *Manager) watch(ctx context.Context, key Key, f *followed) {
	for id, a := range f.answers {
		if a.watched || a.ended {
			continue
		}
		a.watched = true
		f.answers[id] = a
		go m.wait(ctx, key, id)
	}
}

func (m *Manager) wait(ctx context.Context, key Key, id string) {
	for {
		err := m.Runtime.Wait(ctx, id)
		if err == nil || errors.Is(err, sidecar.ErrGone) {
			m.ended(key)
			return
		}
		if !jitter.Wait(ctx, watchPause) {
			return
		}
	}
}
