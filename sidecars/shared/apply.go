package shared

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

const (
	// confirmLimit is how long a proxy may take until it answers a new version, and confirmPoll the time between two questions.
	confirmLimit = 5 * time.Second
	confirmPoll  = 25 * time.Millisecond
)

// errNotTold means that the runtime did not pass a signal on. No pod is to blame for that.
var errNotTold = errors.New("have the shared proxy reload")

// apply puts the last configuration that has passed the test into force. A configuration that the proxy has already is only confirmed. Otherwise:
//
//   - What is about to be put into force is written down first, so that an agent that starts in between knows it.
//   - The link current is swapped, and the proxy is told.
//   - Once the proxy answers the version, it is confirmed. If it does not, current leads back to what it was: the old configuration goes on.
func (t *trial) apply(ctx context.Context) error {
	rec := t.passed
	switch {
	case t.inForce != nil && t.inForce.Version == rec.Version:
		rec.Dir, rec.Container = t.inForce.Dir, t.inForce.Container
		return t.confirm(state{Confirmed: rec, Pending: t.state.Pending, Late: t.state.Late}, rec)
	case t.inForce == nil && t.last != nil && t.last.Version == rec.Version:
		return nil // it starts with that already
	}
	old := t.dir.target(currentLink)
	if err := t.swap(rec); err != nil {
		return err
	}
	if t.inForce != nil || len(rec.Members) > 0 { // the first one, without pods, is no reason to let them wait
		t.reloaded = time.Now()
	}
	said, err := t.reload(ctx, rec.Version)
	if ctx.Err() != nil && said.version != rec.Version {
		return ctx.Err() // the next agent finds out
	}
	t.hear(said, err)
	if said.version == rec.Version {
		rec.Container, t.result = t.seen.id, Applied
		log.FromContext(ctx).Info("shared proxy configured", "version", rec.Version, "pods", len(rec.Members))
		return t.confirm(state{Confirmed: rec}, rec)
	}
	return t.goBack(ctx, old, rec.Version, err)
}

func (t *trial) confirm(now state, rec *record) error {
	t.state, t.inForce, t.last = now, rec, rec
	if t.whole {
		t.bad = badProfile{}
	}
	if t.batch *= 2; t.batch > len(t.pods) {
		t.batch = 0
	}
	for _, m := range t.suspects {
		p := podOf(t.pods, m.key())
		if p == nil || t.whole {
			continue
		}
		if took, measured := t.inForceNow(p); measured && t.Changed != nil {
			t.Changed(t.name, took)
		}
		if p.before == nil {
			t.pauses.of(p.sandbox.UID).joined.note(time.Now(), firstChange, lastPause, "")
		}
		if p.before != nil && p.before.Data.IP != "" {
			t.pauses.of(p.sandbox.UID).changed.note(time.Now(), firstChange, lastPause, "")
		}
	}
	t.wakeAt(time.Now()) // for waiting pods
	return t.save()
}

// reload tells the proxy, and waits until it answers a version. It returns the last answer.
func (t *trial) reload(ctx context.Context, want string) (said answer, err error) {
	if name := t.profile.Spec.Shared.ReloadSignal; name != "" {
		if err := t.Proxies.Signal(ctx, t.seen.id, unix.SignalNum("SIG"+name)); err != nil {
			return answer{}, fmt.Errorf("%w: %w", errNotTold, err)
		}
	}
	for end := time.Now().Add(confirmLimit); ; {
		said, err = t.dir.ask(ctx, t.proxy.PodUID)
		if err == nil && said.version == want || ctx.Err() != nil || !time.Now().Before(end) || t.hasEnded() {
			return said, err
		}
		pause(ctx, confirmPoll)
	}
}

// goBack returns to the old configuration, and notes who is to blame. The proxy is not told: it goes on with what it has.
func (t *trial) goBack(ctx context.Context, old, version string, err error) error {
	why := fmt.Sprintf("the proxy did not answer version %s within %s of its reload", version, confirmLimit)
	if err != nil {
		why += ": " + err.Error()
	}
	if t.inForce != nil && old != "" {
		if err := t.dir.point(currentLink, old); err != nil {
			return err
		}
	}
	if t.seen.version == "" || t.inForce != nil && t.seen.version != t.inForce.Version {
		t.inForce = nil // the next look finds out
	}
	t.wakeAt(t.reloaded.Add(reloadPause))
	if errors.Is(err, errNotTold) {
		return err
	}
	t.result = Unconfirmed
	log.FromContext(ctx).Info("shared proxy has not taken its configuration", "reason", why, "suspects", len(t.suspects))
	if !t.names.vanished(ctx, with(t.base, t.suspects)) && !t.dropTakers(ctx) { // who is gone, or has the port, is to blame
		t.narrow(ctx, why, firstFailure, lastFailure)
	}
	return nil
}

// dropTakers keeps out pods that were to join and have taken the proxy's ports after these were found free, and reports whether there are any.
// They wait for longer than after another refusal: while a proxy tries to listen there, it may accept no pod's connections (HAProxy 2.6 tries for 2 s).
func (t *trial) dropTakers(ctx context.Context) (found bool) {
	for _, m := range t.suspects {
		p := podOf(t.pods, m.key())
		if p == nil || p.before != nil {
			continue
		}
		if err := t.Sandboxes.Free(ctx, m.Sandbox, t.profile.Ports()); isTaken(err) {
			t.keepOut(p, err.Error(), firstFailure, lastFailure)
			found = true
		}
	}
	return found
}
