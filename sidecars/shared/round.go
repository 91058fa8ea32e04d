package shared

import (
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/internal/printable"
	"istio-pod-network-controller/internal/sidecar"
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

// wakeAt has the next round at a time, unless one is due before.
func (r *round) wakeAt(at time.Time) {
	if r.again.IsZero() || at.Before(r.again) {
		r.again = at
	}
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

// tell notes why the profile's present version is not in force, and logs it once.
func (r *round) tell(ctx context.Context, fault, detail string) {
	if r.fault = fault; fault != r.told {
		r.told = fault
		log.FromContext(ctx).Info("configuration of the shared proxy refused", "reason", fault, "details", printable.Words(detail))
	}
}
