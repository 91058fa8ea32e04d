package shared

import (
	"context"
	"errors"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/internal/jitter"
	"istio-pod-network-controller/internal/printable"
)

// sweepInterval is the longest time between two rounds of a profile.
const sweepInterval = 30 * time.Second

func (g *group) run(ctx context.Context) {
	defer g.unlock()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-g.dirty:
		case <-timer.C:
		}
		began := time.Now()
		again := g.work(ctx)
		pause(ctx, roundPause-time.Since(began))
		timer.Reset(max(again, 0))
	}
}

// work is one round with its own deadline. It returns when the next one is due.
func (g *group) work(ctx context.Context) time.Duration {
	bounded, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	again, err := g.round(bounded)
	if err != nil && ctx.Err() == nil {
		log.FromContext(ctx).Error(err, "shared proxy not looked after")
		again = jitter.Full(errorPause)
	}
	if ctx.Err() == nil {
		g.watchEnd(ctx)
	}
	return again
}

func (g *group) round(ctx context.Context) (time.Duration, error) {
	if err := g.dir.prepare(); err != nil {
		return 0, err
	}
	mine, err := g.acquire(ctx)
	if err != nil {
		return 0, err
	}
	if g.unsaved && mine {
		if err := g.save(); err != nil {
			log.FromContext(ctx).Error(err, "what the shared proxy has confirmed is not saved")
		}
	}
	r := &round{group: g, now: time.Now()}
	if err := (successorSearch{r}).look(ctx); err != nil {
		return 0, err
	}
	r.meet(ctx)
	switch p := phaseOf(r.seen, r.inForce, r.last != nil && g.dir.target(currentLink) != ""); {
	case !mine:
		r.wakeAt(r.now.Add(reloadPause))
	case r.waits:
		r.wakeAt(r.now.Add(roundPause))
	case p == absent:
		err = r.shrink(ctx)
	case p == starting:
		r.wakeAt(r.now.Add(roundPause))
	default:
		err = r.configure(ctx)
	}
	if err != nil && !errors.Is(ctx.Err(), context.Canceled) {
		r.stuck = printable.Words("the agent cannot change the shared proxy's configuration, and tries again: " + err.Error())
	}
	r.publish()
	return r.next(), err
}

func (r *round) next() time.Duration {
	wait := sweepInterval
	switch {
	case r.inForce == nil && len(r.pods) > 0:
		wait = lookPause
	case len(r.pods) > 0:
		wait = livePeriod
	}
	if !r.again.IsZero() {
		wait = min(wait, max(time.Until(r.again), 0))
	}
	return wait
}

// watchEnd has a round as soon as the proxy's container has ended.
func (g *group) watchEnd(ctx context.Context) {
	g.mu.Lock()
	defer g.mu.Unlock()
	id := g.proxy.ID
	if id == "" || g.watched == id {
		return
	}
	g.watched = id
	go func() {
		err := g.Proxies.Wait(ctx, id)
		g.mu.Lock()
		if err != nil || ctx.Err() != nil { // the next look finds out
			if g.watched == id {
				g.watched = "" // and waits again
			}
			g.mu.Unlock()
			return
		}
		if g.proxy.ID == id {
			g.proxyEnded()
		}
		g.mu.Unlock()
		g.poke()
	}()
}
