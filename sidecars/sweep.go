package sidecars

import (
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
)

// sweep looks at all proxies of the node, for changes while no agent ran: at containers whose sandbox is not followed, and at homes, which are
// removed once their sandbox is gone.
func (m *Manager) sweep(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	all, err := m.Runtime.List(ctx, "")
	if err != nil {
		log.FromContext(ctx).Error(err, "proxies not listed")
		return
	}
	present := map[Key]bool{}
	for _, c := range all {
		key := Key{PodUID: c.PodUID, Sandbox: c.Sandbox}
		present[key] = true  // also if it has ended: notes say why, to an agent that does not follow its sandbox yet
		if !m.follows(key) { // followed sandboxes are looked at as often
			sweepOne(ctx, m, c)
		}
	}
	if err := m.Logs.TidyLogs(all); err != nil {
		log.FromContext(ctx).Error(err, "logs of proxies not removed")
	}
	// A home whose application has ended lately is kept: an agent that has just started may still follow its sandbox.
	_, err = m.Homes.remove(false, func(key Key, h home) (bool, error) {
		return !present[key] && !m.follows(key) && !h.finished(time.Now()), nil
	})
	if err != nil {
		log.FromContext(ctx).Error(err, "directories of proxies not removed")
	}
}

// sweepOne looks at a container whose sandbox is not followed:
//
//   - If the pod has opted out, or has a shared proxy, the sandbox is followed, so that its proxies are ended and removed.
//   - Otherwise a container that does not run is removed if its sandbox has ended. If it has not, the sandbox will be followed, and the
//     container may say that its proxy is done.
func sweepOne(ctx context.Context, m *Manager, c sidecar.Container) {
	s := podnet.Sandbox{Namespace: c.PodNamespace, Name: c.PodName, UID: c.PodUID, ID: c.Sandbox}
	choice, err := m.Cluster.Choice(ctx, s)
	switch {
	case err == nil && choice.OptedOut:
		m.Follow(s)
	case c.State == sidecar.Running:
	default:
		if ready, err := m.Runtime.Ready(ctx, c.Sandbox); err == nil && !ready {
			_ = m.Runtime.Remove(ctx, c.ID)
		}
	}
}

// clean removes the leftovers of a sandbox that is not followed any more, once its proxies have ended. again is when to try again.
func clean(ctx context.Context, runtime Runtime, homes Homes, key Key) (again time.Duration) {
	all, err := runtime.List(ctx, key.PodUID)
	left := err != nil
	for _, c := range all {
		if c.Sandbox == key.Sandbox && (c.State == sidecar.Running || runtime.Remove(ctx, c.ID) != nil) {
			left = true
		}
	}
	if left {
		return cleanInterval
	}
	if err := homes.of(key).remove(); err != nil {
		log.FromContext(ctx).Error(err, "directory of a proxy not removed", "podUID", key.PodUID, "sandbox", key.Sandbox)
	}
	return 0
}
