package sidecars

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/home"
	"istio-pod-network-controller/sidecars/plan"
	"istio-pod-network-controller/sidecars/profile"
	"istio-pod-network-controller/sidecars/rollout"
)

const stopWait = time.Second

// outcome says what has become of a start: the image is being pulled, or the sandbox does not run.
type outcome struct{ pulling, absent bool }

// act does what was decided. It tries every action, also after one has failed: none needs another of the same Decision.
func act(ctx context.Context, m *Manager, o observed, mem memory, d decision) (_ observed, _ memory, did outcome, err error) {
	for _, a := range d.plan.Actions {
		done, errAction := true, error(nil)
		switch a.Verb {
		case plan.Start:
			o, mem, done, did = start(ctx, m, o, mem, d.version, a)
		case plan.Drain:
			errAction = drain(ctx, m, o, a)
		case plan.Stop:
			if a.ID == d.plan.Serving {
				mem, done, did = canReplace(ctx, m, o, mem, d.version)
			}
			if done {
				o, mem, errAction = stop(ctx, m, o, mem, d.version, a)
			}
		case plan.Remove:
			if errAction = m.Runtime.Remove(ctx, a.ID); errAction == nil {
				o = o.without(a.ID)
				errAction = o.home.Epoch(a.Epoch).Forget()
			}
		}
		if errAction != nil {
			err = errors.Join(err, fmt.Errorf("%s proxy of epoch %d: %w", a.Verb, a.Epoch, errAction))
		} else if done {
			log.FromContext(ctx).Info("proxy changed", "action", string(a.Verb), "epoch", a.Epoch, "reason", a.Why)
		}
	}
	return o, mem, did, err
}

// stop ends a proxy. It is noted first: otherwise an agent that starts takes that for an end of its own, and may never start another one.
func stop(ctx context.Context, m *Manager, o observed, mem memory, version *profile.Version, a plan.Action) (observed, memory, error) {
	_ = o.home.Epoch(a.Epoch).Note(home.Telling) // a home that is full or gone keeps no proxy
	p := o.proxies[a.ID]
	again := p.stopped // the runtime has refused to
	p.stopped = true
	o = o.with(a.ID, p)
	if !p.probes.HungAt.IsZero() {
		mem.failures.why, mem.failures.logPath, mem.failures.unreported = p.probes.Hangs(), "", "" // not why it could not hand over
	} else if c := o.container(a.ID); !again && !p.probes.WasReady && version != nil && c.Hash == version.Hash { // a proxy that is only outdated has not failed
		why := a.Why
		if p.probes.Readiness.Why != "" {
			why += ": " + p.probes.Readiness.Why
		}
		mem = failed(ctx, m, o, mem, p.hash, why, time.Now())
	}
	wait := stopWait
	if a.Kill {
		wait = 0
	}
	return o, mem, m.Runtime.Stop(ctx, a.ID, wait)
}

// drain tells a proxy to finish its connections, and then notes that it did: if the agent is killed in between, the next one tells it again. Until
// then home.Telling says why the proxy may end. If the signal fails, the next reconcile sends it again.
func drain(ctx context.Context, m *Manager, o observed, a plan.Action) error {
	c := o.container(a.ID)
	if c != nil && c.StopSignal != "" { // an Envoy's successor tells it; without a handover it is ended at DrainLimit
		if err := o.home.Epoch(a.Epoch).Note(home.Telling); err != nil {
			return err
		}
		if port := o.home.Epoch(a.Epoch).Facts().AdminPort; port != 0 { // told by a signal alone, it takes connections until it ends
			if err := m.Asker.Close(ctx, o.sandbox, port); err != nil {
				log.FromContext(ctx).Error(err, "listeners of Istio's proxy not closed before it drains", "epoch", a.Epoch)
			}
		}
		if err := m.Runtime.Signal(ctx, a.ID, unix.SignalNum("SIG"+c.StopSignal)); err != nil && !errors.Is(err, sidecar.ErrGone) {
			return err
		}
	}
	return o.home.Epoch(a.Epoch).Note(home.Draining)
}

// settle writes down and tells what was learned.
func settle(ctx context.Context, m *Manager, o observed, mem memory, learned news) memory {
	for _, epoch := range learned.serving {
		if err := o.home.Epoch(epoch).Note(home.Ready); err != nil {
			log.FromContext(ctx).Error(err, "proxy that serves not noted", "epoch", epoch)
		}
	}
	for _, epoch := range learned.gone {
		_ = o.home.Epoch(epoch).Forget() // what cannot be removed goes with the home
	}
	for _, f := range learned.faults {
		if f.proxy.probes.WasReady {
			mem.restarts++
		}
		m.counts.change(o.choice, func(of *Figures) { of.Restarts++ })
		mem = failed(ctx, m, o, mem, f.proxy.hash, f.why, f.at)
		mem.failures.whyOnly, mem.failures.unreported = mem.failures.why, f.unreported
		mem.failures.why += f.words
		if time.Since(f.at) <= wordsTime {
			mem.failures.logPath = f.logPath
		}
	}
	return mem
}

// failed returns the memory after a proxy of a version could not be started, or has ended without being told to. An empty hash is for what is the pod's
// own fault: it ends the sandbox's slot, and says nothing of a version.
func failed(ctx context.Context, m *Manager, o observed, mem memory, hash, why string, at time.Time) memory {
	p := o.choice.Profile
	next, was := m.Rollout.Failed(p, o.key, hash)
	m.followed.enqueue(next)
	upgrade := was != "" && (was != rollout.ForUpgrade || hash == p.Hash)
	if upgrade {
		m.counts.change(o.choice, func(of *Figures) { of.Failed++ })
	}
	if upgrade && was == rollout.ForUpgrade {
		logUnnoted(ctx, p, m.Good.Fails(p))
	}
	if !upgrade {
		p = nil
	}
	return mem.afterFailure(at, why, p)
}

// start makes a proxy. What the owner of the pod or the profile has to know is a failure, the rest is waited for.
func start(ctx context.Context, m *Manager, o observed, mem memory, version *profile.Version, a plan.Action) (_ observed, _ memory, started bool, did outcome) {
	o, mem, err := create(ctx, m, o, mem, version, a)
	if err != nil {
		mem, did = notStarted(ctx, m, o, mem, version, err)
		return o, mem, false, did
	}
	mem.upgrades = mem.upgrades.afterStart(version, o.choice.Profile)
	return o, mem, true, outcome{}
}

// canReplace reports whether all is there that a new proxy is made from, so that the serving proxy may be ended first.
func canReplace(ctx context.Context, m *Manager, o observed, mem memory, version *profile.Version) (_ memory, can bool, did outcome) {
	if _, err := prepare(ctx, m, o, version, mem.epoch); err != nil {
		mem, did = notStarted(ctx, m, o, mem, version, err)
		return mem, false, did
	}
	return mem, true, outcome{}
}

func notStarted(ctx context.Context, m *Manager, o observed, mem memory, version *profile.Version, err error) (memory, outcome) {
	switch {
	case errors.Is(err, ErrPulling):
		return mem, outcome{pulling: true}
	case errors.Is(err, errReplace): // it is started once the running proxy has ended
		mem.upgrades.noHandover = version.Hash
		return mem, outcome{}
	case errors.Is(err, sidecar.ErrGone), o.choice.Ending: // the pod's next sandbox is followed when it is there, or the runtime ends this one just now
		left(m, []podnet.Key{o.key})
		return mem, outcome{absent: true}
	}
	mem.upgrades = mem.upgrades.afterStart(version, o.choice.Profile)
	hash := version.Hash
	if _, is := errors.AsType[podFault](err); is {
		hash = ""
	}
	return failed(ctx, m, o, mem, hash, err.Error(), time.Now()), outcome{}
}

func logUnnoted(ctx context.Context, p *profile.Version, err error) {
	if err != nil {
		log.FromContext(ctx).Error(err, "an agent that starts will not know which version of a profile works", "profile", p.Name)
	}
}
