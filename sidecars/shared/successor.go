package shared

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/internal/printable"
	"istio-pod-network-controller/internal/sidecar"
)

// succeedPause is the time between two looks at a successor for which changes do not wait any more.
const succeedPause = 2 * time.Second

// successorSearch is the part of a round that finds out which of the DaemonSet's pods is the proxy.
type successorSearch struct{ *round }

// look finds the proxy and its successor, and asks them what is in force.
func (r successorSearch) look(ctx context.Context) error {
	all, err := r.Proxies.Find(ctx, r.name)
	if err != nil && !errors.Is(err, sidecar.ErrGone) {
		return fmt.Errorf("find the shared proxy: %w", err)
	}
	now := r.choose(ctx, all)
	r.meetProxy(now)
	if now.ID != "" {
		r.hear(r.dir.ask(ctx, now.PodUID))
	}
	if err := r.settle(); err != nil {
		return err
	}
	if newest := len(all) - 1; newest >= 0 && all[newest].ID != now.ID && r.lock != nil {
		if err := r.succeed(ctx, all[newest], all); err != nil {
			return err
		}
	}
	if r.inForce == nil || r.lock == nil {
		return nil
	}
	if err := r.dir.mark(r.proxy.PodUID); err != nil {
		log.FromContext(ctx).Error(err, "the shared proxy's pod does not become ready")
	}
	return nil
}

// choose returns the proxy among its containers: the present one while it runs, otherwise the newest that answers, or the newest.
func (r successorSearch) choose(ctx context.Context, all []sidecar.Container) sidecar.Container {
	known := []string{r.proxy.ID}
	if c := r.state.Confirmed; c != nil {
		known = append(known, c.Container)
	}
	if r.lock == nil {
		slices.Reverse(known) // the agent that works has chosen
	}
	if r.hasEnded() && len(all) > 1 { // the runtime still lists it
		all = slices.DeleteFunc(slices.Clone(all), func(c sidecar.Container) bool { return c.ID == r.proxy.ID })
	}
	for _, id := range known {
		if i := slices.IndexFunc(all, func(c sidecar.Container) bool { return c.ID == id }); i >= 0 {
			return all[i]
		}
	}
	for _, one := range slices.Backward(all) {
		if _, err := r.dir.ask(ctx, one.PodUID); err == nil || len(all) == 1 {
			return one
		}
	}
	if len(all) == 0 {
		return sidecar.Container{}
	}
	return all[len(all)-1]
}

// succeed has the successor become the proxy if it answers what is in force, or if the proxy answers nothing.
func (r successorSearch) succeed(ctx context.Context, next sidecar.Container, all []sidecar.Container) error {
	if next.PodUID != r.newer.pod {
		r.newer = successor{pod: next.PodUID, since: r.now}
	}
	said, err := r.dir.ask(ctx, next.PodUID)
	in := r.inForce
	switch {
	case err == nil && in == nil && r.seen.version == "",
		err == nil && in != nil && said.version == in.Version && said.gid == in.Spec.RunAsGroup:
		log.FromContext(ctx).Info("shared proxy replaced", "proxyPod", next.PodUID, "version", said.version, "duration", time.Since(r.newer.since))
		r.newer = successor{}
		r.meetProxy(next)
		r.hear(said, nil)
		return errors.Join(r.settle(), r.dir.sweep(all))
	case err == nil && in != nil && said.version != in.Version && time.Since(r.newer.told) > confirmLimit:
		r.newer.told = time.Now()
		r.tellSuccessor(ctx, next)
	}
	if r.waits = r.now.Sub(r.newer.since) < startLimit; r.waits {
		return nil
	}
	if !r.newer.slow {
		r.newer.slow = true
		log.FromContext(ctx).Info("new pod of the shared proxy does not take over; the older one serves on", "proxyPod", next.PodUID, "reason", whyNotNext(said, err, in))
	}
	r.wakeAt(r.now.Add(succeedPause))
	return nil
}

// tellSuccessor has a successor read its files anew: they have changed while it started.
func (r successorSearch) tellSuccessor(ctx context.Context, next sidecar.Container) {
	name := ""
	if shared := r.inForce.Spec.Shared; shared != nil {
		name = shared.ReloadSignal
	}
	if name == "" {
		return
	}
	if err := r.Proxies.Signal(ctx, next.ID, unix.SignalNum("SIG"+name)); err != nil {
		log.FromContext(ctx).Error(err, "new pod of the shared proxy not told to read its files")
	}
}

// whyNotNext says why a successor is not the proxy.
func whyNotNext(said answer, err error, inForce *record) string {
	switch {
	case err != nil:
		return printable.Words(err.Error())
	case inForce == nil:
		return "the configuration of the older one is not known"
	case said.version != inForce.Version:
		return fmt.Sprintf("it answers version %s, not %s", said.version, inForce.Version)
	}
	return fmt.Sprintf("it runs as group %d, not %d", said.gid, inForce.Spec.RunAsGroup)
}
