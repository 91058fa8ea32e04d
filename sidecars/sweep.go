package sidecars

import (
	"context"
	"errors"
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
	if err := errors.Join(m.sweepHomes(present), m.Homes.sweepBaseIDs()); err != nil {
		log.FromContext(ctx).Error(err, "directories of proxies not removed")
	}
}

// sweepOne looks at a container whose sandbox is not followed. One of a pod that has opted out while no agent ran, or moves to a proxy
// elsewhere, is followed, so that it is ended and removed. Another one that does not run is removed if its sandbox has ended. Otherwise it will be followed, and may say that
// the proxy is done.
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

// sweepHomes removes the homes without a container that runs whose sandbox is not followed. One whose application has ended lately is kept: an
// agent that has just started may follow it yet.
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
