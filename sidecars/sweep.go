package sidecars

import (
	"context"
	"errors"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/home"
)

// sweep looks at all proxies of the node, for changes while no agent ran: at containers whose sandbox is not followed, and at homes, which are
// removed once their sandbox is gone.
func sweep(ctx context.Context, m *Manager) {
	ctx, cancel := context.WithTimeout(ctx, reconcileTimeout)
	defer cancel()
	all, err := m.Runtime.List(ctx, "")
	if err != nil {
		log.FromContext(ctx).Error(err, "proxies not listed")
		return
	}
	present := map[podnet.Key]bool{}
	for _, c := range all {
		key := podnet.Key{PodUID: c.PodUID, Sandbox: c.Sandbox}
		present[key] = true                                 // also if it has ended: notes say why, to an agent that does not follow its sandbox yet
		if _, followed := m.followed.find(key); !followed { // followed sandboxes are looked at as often
			sweepOne(ctx, m, c)
		}
	}
	if err := m.Runtime.TidyLogs(all); err != nil {
		log.FromContext(ctx).Error(err, "logs of proxies not removed")
	}
	// A home whose application has ended lately is kept: an agent that has just started may still follow its sandbox.
	_, err = m.Homes.RemoveIf(false, func(key podnet.Key, h home.Home) (bool, error) {
		_, followed := m.followed.find(key)
		return !present[key] && !followed && !h.Notes().Finished(time.Now()), nil
	})
	if err != nil {
		log.FromContext(ctx).Error(err, "directories of proxies not removed")
	}
}

// sweepOne looks at a container whose sandbox is not followed:
//
//   - If the pod has opted out, or has a shared proxy, the sandbox is followed, so that its proxies are ended and removed.
//   - So it is if the pod ends, or is gone, and its proxy runs: it was to be ended while agents changed. CRI-O waits for it.
//   - Otherwise a container that does not run is removed if its sandbox has ended. If it has not, the sandbox will be followed, and the
//     container may say that its proxy is done.
func sweepOne(ctx context.Context, m *Manager, c sidecar.Container) {
	s := podnet.Sandbox{Namespace: c.PodNamespace, Name: c.PodName, UID: c.PodUID, ID: c.Sandbox}
	choice, err := m.Cluster.Choice(ctx, s)
	switch {
	case err == nil && choice.OptedOut:
		m.Follow(s)
	case c.State == sidecar.Running && !m.Follows(c.PodUID) && (errors.Is(err, podnet.ErrNoPod) || err == nil && choice.Ending):
		m.Follow(s)
	case c.State == sidecar.Running:
	default:
		if ready, err := m.Runtime.Ready(ctx, c.Sandbox); err == nil && !ready {
			_ = m.Runtime.Remove(ctx, c.ID)
		}
	}
}

// clean has the proxies of a sandbox that is not followed any more finish with its application, and removes what they leave. again is when to try
// again.
func clean(ctx context.Context, m *Manager, key podnet.Key) (again time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, reconcileTimeout)
	defer cancel()
	all, err := m.Runtime.List(ctx, key.PodUID)
	there := slices.DeleteFunc(all, func(c sidecar.Container) bool { return c.Sandbox != key.Sandbox })
	o := observed{key: key, choice: Choice{Ending: true}, home: m.Homes.Of(key), containers: there}
	if err := finishWithApplication(ctx, m.Runtime, o); err != nil {
		log.FromContext(ctx).Error(err, "proxy not told to finish with its application")
	}
	left := err != nil
	for _, c := range there {
		if c.State == sidecar.Running || m.Runtime.Remove(ctx, c.ID) != nil {
			left = true
		}
	}
	if left {
		return cleanInterval
	}
	if err := o.home.Remove(); err != nil {
		log.FromContext(ctx).Error(err, "directory of a proxy not removed")
	}
	return 0
}
