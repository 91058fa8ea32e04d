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
	"istio-pod-network-controller/sidecars/probe"
	"istio-pod-network-controller/sidecars/rollout"
)

const stopWait = time.Second

// stepping is what changes something in a step: a view of the sandbox, the memory of it, and what the Manager was given.
type stepping struct {
	*Manager
	memory *followed
	view
}

// outcome says what has become of a start: the image is being pulled, or the sandbox does not run.
type outcome struct{ pulling, absent bool }

// act does what was decided. It tries every action, also after one has failed: none needs another of the same Decision.
func (s stepping) act(ctx context.Context, d plan.Decision) (out outcome, err error) {
	for _, a := range d.Actions {
		done, errAction := true, error(nil)
		switch a.Verb {
		case plan.Start:
			done, out = s.start(ctx, a)
		case plan.Drain:
			errAction = s.drain(ctx, a)
		case plan.Stop:
			if a.ID == d.Serving {
				done, out = s.canReplace(ctx)
			}
			if done {
				errAction = s.stop(ctx, a)
			}
		case plan.Remove:
			errAction = s.remove(ctx, a)
		}
		if errAction != nil {
			err = errors.Join(err, fmt.Errorf("%s proxy of epoch %d: %w", a.Verb, a.Epoch, errAction))
		} else if done {
			log.FromContext(ctx).Info("proxy changed", "action", string(a.Verb), "epoch", a.Epoch, "reason", a.Why)
		}
	}
	return out, err
}

// stop ends a proxy. It is noted first: otherwise an agent that starts takes that for an end of its own, and may never start another one.
func (s stepping) stop(ctx context.Context, a plan.Action) error {
	_ = s.home.Note(home.Telling, a.Epoch) // a home that is full or gone keeps no proxy
	mine := s.answers[a.ID]
	again := mine.stopped // the runtime has refused to
	mine.stopped = true
	s.answers[a.ID] = mine
	if !mine.probes.HungAt.IsZero() {
		s.memory.why, s.memory.log, s.memory.last = mine.probes.Hangs(), "", "" // not why it could not hand over
	} else if c := s.container(a.ID); !again && !mine.probes.WasReady && s.aim != nil && c.Hash == s.aim.Hash { // a proxy that is only outdated has not failed
		why := a.Why
		if mine.probes.Readiness.Why != "" {
			why += ": " + mine.probes.Readiness.Why
		}
		s.fault(ctx, why, mine.hash)
	}
	wait := stopWait
	if a.Kill {
		wait = 0
	}
	return s.Runtime.Stop(ctx, a.ID, wait)
}

func (s stepping) remove(ctx context.Context, a plan.Action) error {
	if err := s.Runtime.Remove(ctx, a.ID); err != nil {
		return err
	}
	delete(s.answers, a.ID)
	return s.home.Forget(a.Epoch)
}

// drain tells a proxy to finish its connections, and then notes that it did: if the agent is killed in between, the next one tells it again. Until
// then factTelling says why the proxy may end. A proxy that could not be told is told later.
func (s stepping) drain(ctx context.Context, a plan.Action) error {
	c := s.container(a.ID)
	if c != nil && c.StopSignal != "" { // an Envoy's successor tells it; without a handover it is ended at DrainLimit
		if err := s.home.Note(home.Telling, a.Epoch); err != nil {
			return err
		}
		if port := s.home.IstioFacts(a.Epoch).AdminPort; port != 0 { // told by a signal alone, it takes connections until it ends
			if err := s.Asker.Close(ctx, s.sandbox, port); err != nil {
				log.FromContext(ctx).Error(err, "listeners of Istio's proxy not closed before it drains", "epoch", a.Epoch)
			}
		}
		if err := s.Runtime.Signal(ctx, a.ID, unix.SignalNum("SIG"+c.StopSignal)); err != nil && !errors.Is(err, sidecar.ErrGone) {
			return err
		}
	}
	return s.home.Note(home.Draining, a.Epoch)
}

// fault notes that a proxy of a version could not be started, or has ended without being told to.
func (s stepping) fault(ctx context.Context, why, hash string) {
	p, f := s.choice.Profile, s.memory
	next, was := s.Rollout.Failed(p, s.key, hash)
	s.look(next)
	if was == "" || was == rollout.ForUpgrade && hash != p.Hash {
		p = nil
	} else {
		s.count(func(of *Figures) { of.Failed++ })
	}
	if was == rollout.ForUpgrade && p != nil {
		s.noteGood(ctx, s.good.Fails(p))
	}
	f.fail(time.Now(), why, p)
}

// report ends a step: it notes an upgrade that has succeeded, and says how the proxy is.
func (s stepping) report(d plan.Decision, did outcome) {
	f, serving := s.memory, s.container(d.Serving)
	if p := s.choice.Profile; p != nil && serving != nil && serving.Hash == s.aim.Hash {
		f.goodStarts = 0
		if f.noHandover == serving.Hash { // it can hand over to its own successor
			f.noHandover = ""
		}
		next, freed := s.Rollout.Done(p, s.key, serving.Hash)
		if freed {
			f.upgraded, f.badTurn = time.Now(), 0
			s.count(func(of *Figures) { of.Upgraded++ })
		}
		s.look(next)
		tries := serving.Hash != p.Hash && f.bad == p.Hash // its upgrade fails
		if !tries && time.Since(later(f.failed, s.answers[d.Serving].probes.FirstReadyAt)) > calmTime {
			f.failures, f.why, f.log = 0, "", ""
		}
	}
	status := s.status(f, d, did.pulling)
	status.Paused = status.FailedHash != "" && s.Rollout.Paused(s.choice.Name)
	s.Reporter.Report(s.sandbox, status)
	s.countHealth(status)
}

func (s stepping) noteEnd(ctx context.Context, a answer, why string) {
	if a.probes.WasReady {
		s.memory.restarts++
	}
	s.count(func(of *Figures) { of.Restarts++ })
	s.fault(ctx, s.taken(ctx, a)+why, a.hash)
	if !a.gone.IsZero() { // the runtime may have taken a while to answer since
		s.memory.failed = a.gone
	}
}

// goes reports whether the end of a proxy is no failure: the pod, the application or the sandbox ends.
func (s stepping) goes(ctx context.Context) bool {
	if s.choice.Ending || s.home.Finished(time.Now()) {
		return true
	}
	if ready, err := s.Runtime.Ready(ctx, s.key.Sandbox); err == nil && !ready {
		return true
	}
	// containerd 1.7 does not say that the application has ended, and ends the proxies with their sandbox.
	over, err := isOver(ctx, s.Runtime, s.Cluster, s.sandbox, sidecar.Application{})
	return err == nil && over && s.home.NoteFinished() == nil
}

func (s stepping) noteGood(ctx context.Context, err error) {
	if err != nil {
		log.FromContext(ctx).Error(err, "an agent that starts will not know which version of a profile works", "profile", s.choice.Name)
	}
}

func (s stepping) look(next []podnet.Key) {
	for _, key := range next {
		s.queue.Add(key)
	}
}

// taken returns which other process listens on a port of a proxy that ended before it was ready, or "".
func (s stepping) taken(ctx context.Context, a answer) string {
	if s.choice.Profile == nil || a.probes.WasReady {
		return ""
	}
	if err := s.Asker.Ask(ctx, s.sandbox, s.madeFrom(a.hash), a.epoch, probe.Ready); errors.Is(err, ErrPortTaken) {
		return err.Error() + "; "
	}
	return ""
}
