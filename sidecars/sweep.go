package sidecars

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
)

// sweep looks at everything there is on the node: containers of ours whose sandbox is not followed are looked at, and homes whose sandbox is
// gone are removed. It finds what happened while no agent ran.
func (m *Manager) sweep(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	all, err := m.Runtime.List(ctx, "")
	if err != nil {
		log.FromContext(ctx).Error(err, "proxies not listed")
		return
	}
	present := map[string]bool{}
	for _, c := range all {
		key := Key{PodUID: c.PodUID, Sandbox: c.Sandbox}
		present[key.name()] = present[key.name()] || c.State == sidecar.Running
		if !m.follows(key) { // others are looked at as often
			m.sweepOne(ctx, c)
		}
	}
	if err := m.Logs.TidyLogs(all); err != nil {
		log.FromContext(ctx).Error(err, "logs of proxies not removed")
	}
	if err := m.sweepHomes(present); err != nil {
		log.FromContext(ctx).Error(err, "directories of proxies not removed")
	}
}

// sweepOne looks at a container whose sandbox is not followed:
//
//   - If the pod has opted out, or moves to a shared proxy, the sandbox is followed, so that its proxies are ended and removed.
//   - Otherwise a container that does not run is removed if its sandbox has ended. If it has not, the sandbox will be followed, and the
//     container may say that its proxy is done.
func (m *Manager) sweepOne(ctx context.Context, c sidecar.Container) {
	s := podnet.Sandbox{Namespace: c.PodNamespace, Name: c.PodName, UID: c.PodUID, ID: c.Sandbox}
	choice, err := m.Cluster.Choice(ctx, s)
	switch {
	case err == nil && (choice.OptedOut || choice.Leaves):
		m.Follow(s)
	case c.State == sidecar.Running:
	default:
		if ready, err := m.Runtime.Ready(ctx, c.Sandbox); err == nil && !ready {
			_ = m.Runtime.Remove(ctx, c.ID)
		}
	}
}

// clean removes what is left of a sandbox that is not followed any more, once its proxies have ended.
func (m *Manager) clean(ctx context.Context, key Key) {
	all, err := m.Runtime.List(ctx, key.PodUID)
	left := 0
	for _, c := range all {
		switch {
		case c.Sandbox != key.Sandbox:
		case c.State == sidecar.Running:
			left++
		case m.Runtime.Remove(ctx, c.ID) != nil:
			left++
		}
	}
	if err != nil || left > 0 {
		m.queue.AddAfter(key, cleanInterval)
		return
	}
	if err := m.Homes.of(key).remove(); err != nil {
		log.FromContext(ctx).Error(err, "directory of a proxy not removed", "podUID", key.PodUID, "sandbox", key.Sandbox)
	}
}

func (m *Manager) follows(key Key) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.known[key] != nil
}

// sweepHomes removes the homes of sandboxes that are not followed and have no running proxy. One whose application has ended lately is kept: an
// agent that has just started may still follow its sandbox.
func (m *Manager) sweepHomes(present map[string]bool) error {
	entries, err := os.ReadDir(m.Homes.Root)
	if err != nil {
		return err
	}
	for _, e := range entries {
		uid, sandbox, ok := strings.Cut(e.Name(), ".")
		if !ok || present[e.Name()] || m.follows(Key{PodUID: uid, Sandbox: sandbox}) {
			continue
		}
		left := home{filepath.Join(m.Homes.Root, e.Name())}
		if left.finished(time.Now()) {
			continue
		}
		if err := left.remove(); err != nil {
			return err
		}
	}
	return nil
}
