package sidecars

import (
	"context"
	"time"

	"istio-pod-network-controller/internal/sidecar"
)

// listFor is how long a list counts, see listed.
const listFor = time.Second

// listed is the runtime's last list of a pod's proxies. Each look makes a new one, except while the agent only waits for a new proxy to be ready:
// then a list is used for listFor. All that changes meanwhile the agent does itself, or is told of (the end of a process).
type listed struct {
	containers []sidecar.Container
	at         time.Time
	waits      bool // nothing was done since, and a proxy is waited for
	ended      bool // a proxy has ended since it was begun; Manager.mu protects it
}

// containers returns those of a pod's proxies.
func (m *Manager) containers(ctx context.Context, key Key, f *followed) ([]sidecar.Container, error) {
	m.mu.Lock()
	stale := f.list.ended || !f.list.waits || time.Since(f.list.at) >= listFor
	if stale {
		f.list = listed{at: time.Now()}
	}
	m.mu.Unlock()
	if !stale {
		return f.list.containers, nil
	}
	all, err := m.Runtime.List(ctx, key.PodUID)
	f.list.containers = all
	return all, err
}

// waits notes whether the look at a sandbox does nothing but wait for a proxy that starts.
func (m *Manager) waits(f *followed, is bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f.list.waits = is
}

// ended queues a sandbox in which a proxy has ended. Its list is not used again.
func (m *Manager) ended(key Key) {
	m.mu.Lock()
	if f := m.known[key]; f != nil {
		f.list.ended = true
	}
	m.mu.Unlock()
	m.queue.Add(key)
}
