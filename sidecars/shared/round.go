package shared

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/printable"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/home"
	"istio-pod-network-controller/sidecars/profile"
)

const (
	// reloadPause is the least time between two reloads of a proxy.
	reloadPause = time.Second
	// lookPause is the time until a proxy that does not answer is looked at again, and livePeriod for a proxy that does.
	lookPause = 500 * time.Millisecond
	// missLimit is how long a proxy that has answered may be silent. After that it counts as serving no pod.
	missLimit  = 5 * time.Second
	livePeriod = 5 * time.Second
)

// round is one look at a profile's pods and proxy, with what it leads to.
type round struct {
	*group
	now     time.Time
	seen    seen
	inForce *record          // what the proxy serves, as it says itself; nil if that is not known
	last    *record          // what it serves or starts with
	wanted  *profile.Version // the profile's present version; nil if no pod has chosen it
	pods    []*podNow
	reads   int
	again   time.Time
	fault   string // why the profile's present version is not in force
	foreign bool   // the proxy does not run as the profile's group: fault says so
	waits   bool   // changes wait for the successor
	stuck   string // why the agent could not do what was to be done, or ""
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

// wakeAt has the next round at a time, unless one is due before.
func (r *round) wakeAt(at time.Time) {
	if r.again.IsZero() || at.Before(r.again) {
		r.again = at
	}
}

// acquire reports whether this agent works on the proxy. Without the lock it only reads the state that the working agent has written.
func (g *group) acquire(ctx context.Context) (mine bool, err error) {
	if g.lock == nil {
		if g.lock, err = home.LockFile(filepath.Join(g.dir.path, "lock"), os.O_RDWR|os.O_CREATE); err != nil {
			return false, err
		}
		g.loaded = false
	}
	if g.loaded && g.lock != nil {
		return true, nil
	}
	if g.state, err = g.dir.load(); err != nil {
		log.FromContext(ctx).Error(err, "what the shared proxy has confirmed is not known")
	}
	g.loaded = true
	return g.lock != nil, nil
}

func (g *group) unlock() {
	if g.lock != nil {
		home.Unlock(g.lock)
	}
}

// save writes down what the proxy has confirmed. What could not be written is tried again.
func (g *group) save() error {
	err := g.dir.save(g.state)
	g.unsaved = err != nil
	return err
}

// swap writes a configuration down, and lets current lead to it.
func (g *group) swap(rec *record) error {
	pending := g.state.with(rec)
	if err := g.dir.save(pending); err != nil {
		return err
	}
	g.state = pending
	return g.dir.point(currentLink, rec.Dir)
}

// profileOf returns the profile that a configuration was rendered from.
func (g *group) profileOf(rec *record) (*profile.Version, error) {
	if g.compiled != nil && g.compiled.Hash == rec.Hash {
		return g.compiled, nil
	}
	out, err := profile.New(g.name, rec.Spec)
	if err != nil {
		return nil, fmt.Errorf("use the profile's last version: %w", err)
	}
	g.compiled = out
	return out, nil
}

func (r *round) meetProxy(c sidecar.Container) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.ID != r.proxy.ID {
		r.proxy = proxy{}
		r.checked = time.Time{}
	}
	r.proxy.Container = c
	r.seen = seen{there: c.ID != "" && !r.proxy.ended, id: c.ID}
}

// hear notes what the proxy has answered.
func (r *round) hear(said answer, err error) {
	if err == nil {
		r.proxy.silent, r.proxy.answered, r.proxy.gid = time.Time{}, true, said.gid
		r.seen.version, r.seen.silent = said.version, 0
		return
	}
	if r.proxy.silent.IsZero() {
		r.proxy.silent = r.now
	}
	r.seen.version, r.seen.silent = "", time.Since(r.proxy.silent)
}

// serving returns the configuration that the proxy serves as far as is known: silent for less than missLimit, it serves what it has confirmed.
func (r *round) serving() *record {
	if r.inForce == nil && r.seen.there && r.seen.version == "" && r.proxy.answered && r.seen.silent < missLimit &&
		r.state.Confirmed != nil && r.state.Confirmed.Container == r.seen.id {
		return r.state.Confirmed
	}
	return r.inForce
}

// settle notes what the proxy's answer means.
func (r *round) settle() error {
	now, inForce := r.state.settle(r.seen)
	isNew := inForce != nil && inForce != r.state.Confirmed
	r.state, r.inForce = now, inForce
	if inForce != nil {
		r.last = inForce
		if r.lock != nil && r.dir.target(currentLink) != inForce.Dir && r.dir.holds(inForce.Dir) {
			if err := r.dir.point(currentLink, inForce.Dir); err != nil { // the proxy took it after the agent had stopped waiting
				return err
			}
		}
	} else if r.seen.version == "" {
		r.last = now.at(r.dir.target(currentLink))
	}
	if !isNew || r.lock == nil {
		return nil
	}
	r.bad = badProfile{}
	return r.save()
}

func (s state) at(dir string) *record {
	for _, one := range s.records() {
		if dir != "" && one.Dir == dir {
			return one
		}
	}
	return nil
}

// tell notes why the profile's present version is not in force, and logs it once.
func (r *round) tell(ctx context.Context, fault, detail string) {
	if r.fault = fault; fault != r.told {
		r.told = fault
		log.FromContext(ctx).Info("configuration of the shared proxy refused", "reason", fault, "details", printable.Words(detail))
	}
}

func (r *round) publish() {
	out := outcome{r, r.serving()}
	served, there := map[podnet.Key]bool{}, map[podnet.Key]bool{}
	for _, m := range out.rec.members() {
		served[m.key()] = true
	}
	for _, p := range r.pods {
		there[p.key()], p.refusedFor = true, r.pauses.of(p.sandbox.UID).refused.why
	}
	figures := out.figures(r.pods, served)
	r.mu.Lock()
	figures.Reloads = r.figures.Reloads
	r.served, r.figures = served, figures
	if r.proxy.ended {
		r.proxyEnded()
		clear(served)
	}
	r.known = r.known || r.inForce != nil || phaseOf(r.seen, r.inForce, r.last != nil) != starting
	r.mu.Unlock()
	out.show(r.screen, r.pods, served)
	r.names.forget(there)
	maps.DeleteFunc(r.pauses, func(uid string, p *podPauses) bool { return podWith(r.pods, uid) == nil && p.calm(time.Now()) })
}
