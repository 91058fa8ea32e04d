package sidecars

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
)

const (
	// startPoll is the shortest time between two questions to a proxy that is starting. Later it is one part in startPart of the time that
	// the start has taken, and silentPoll at most.
	startPoll = 50 * time.Millisecond
	startPart = 8
	// silentPoll is the time between two questions to a proxy that no longer answers.
	silentPoll = time.Second
	// stopWait is how long a proxy that is ended may take.
	stopWait = time.Second
)

// ErrPulling means that an image is being pulled. Notify is called when that has ended.
var ErrPulling = errors.New("the image is being pulled")

// step looks at one sandbox and does what is to be done. again is when to look the next time; 0 is never.
func (m *Manager) step(ctx context.Context, key Key, f *followed) (again time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	sandbox := m.sandboxOf(f)
	choice, err := m.Cluster.Choice(ctx, sandbox)
	if errors.Is(err, podnet.ErrNoPod) {
		m.Unfollow(key.PodUID)
		return 0, nil
	} else if err != nil {
		return 0, fmt.Errorf("read what the pod has chosen: %w", err)
	}
	s := &stepping{Manager: m, key: key, followed: f, sandbox: sandbox, choice: choice, home: m.Homes.of(key)}
	if s.there, err = s.list(ctx); err != nil {
		return 0, err
	}
	if choice.Name == "" && len(s.there) == 0 {
		m.drop(key)
		return 0, nil
	}
	m.choose(f, choice.Name)
	if choice.Profile == nil || choice.Ending {
		m.Rollout.leave(key)
	}
	s.meet(s.there, time.Now())
	s.comeBack()
	s.renewSecrets(ctx)
	s.noteReady(ctx)
	s.hearLastWords(time.Now())
	s.noteEnds(ctx)
	s.ask(ctx)
	decision := Decide(s.desired(), s.relate(ctx, s.held(s.observe(s.there, s.leftAt))), time.Now())
	s.waits(f, len(decision.Actions) == 0 && len(decision.Ask) > 0)
	err = s.act(ctx, decision)
	s.settle(decision)
	if choice.Finished && len(s.there) == 0 {
		m.letGo(key)
		return 0, nil
	}
	return s.again(decision), err
}

// stepping is one look at one sandbox.
type stepping struct {
	*Manager
	*followed
	key     Key
	sandbox podnet.Sandbox
	choice  Choice
	home    home
	there   []sidecar.Container
	pulling bool
	absent  bool // the sandbox does not run
}

// list returns the sandbox's containers, oldest first. Epochs of the pod's other sandboxes are not used again: a container's name in the runtime
// consists of the pod's UID and the epoch.
func (s *stepping) list(ctx context.Context) (there []sidecar.Container, err error) {
	all, err := s.containers(ctx, s.key, s.followed)
	if err != nil {
		return nil, err
	}
	for _, c := range all {
		s.epoch = max(s.epoch, c.Epoch+1)
		if c.Sandbox == s.key.Sandbox {
			there = append(there, c)
		}
	}
	slices.SortFunc(there, func(a, b sidecar.Container) int { return cmp.Compare(a.Epoch, b.Epoch) })
	return there, nil
}

// ask asks the running proxies that do not drain whether they are ready: at each look those that did not answer last time, the others every
// period.
func (s *stepping) ask(ctx context.Context) {
	now := time.Now()
	for _, c := range s.there {
		a := s.answers[c.ID]
		if c.State != sidecar.Running || !s.home.drainedAt(c.Epoch).IsZero() {
			continue
		}
		switch {
		case s.choice.Profile == nil && a.asked.IsZero():
			a.ready, a.now = true, true // nobody knows how to ask it; it was left running
		case s.choice.Profile == nil || a.now && now.Sub(a.asked) < s.period():
			continue
		case !s.serves(c):
			a.hear(errServesNot)
		default:
			a.ready = a.ready || c.HotRestart != nil
			a.hear(s.Asker.Ask(ctx, s.sandbox, s.choice.Profile, c.Epoch))
		}
		s.answers[c.ID] = a
	}
}

func (s *stepping) period() time.Duration {
	return time.Duration(s.choice.Profile.Spec.Readiness.PeriodSeconds) * time.Second
}

func (s *stepping) desired() Desired {
	p := s.choice.Profile
	if s.left() {
		return Desired{Leave: true, DrainLimit: s.choice.Drain}
	}
	if p == nil {
		return Desired{Keep: !s.choice.OptedOut, MaxRunning: 1, HotRestart: s.hotRestarts(), DrainLimit: time.Hour}
	}
	return Desired{
		Wanted: !s.done() && !s.choice.Finished && !s.home.finished(time.Now()), Keep: true,
		Hash: p.Hash, MaxRunning: s.maxRunning(p), HotRestart: s.hotRestarts(), Upgrade: s.mayUpgrade(p),
		StartLimit: p.startLimit(), DrainLimit: p.drainLimit(), Epoch: s.epoch, RetryAt: s.retryAt(),
	}
}

// mayUpgrade reports whether a proxy of an older version may be replaced now. It needs no turn if no such proxy is ready, or if one of the
// present version is ready beside it: then the old one only has to be told to drain.
func (s *stepping) mayUpgrade(p *Profile) bool {
	old, present := false, false
	for _, c := range s.there {
		if c.State != sidecar.Running || !s.answers[c.ID].ready || !s.home.drainedAt(c.Epoch).IsZero() {
			continue
		}
		old, present = old || c.Hash != p.Hash, present || c.Hash == p.Hash
	}
	return !old || present || !s.choice.Ending && s.Rollout.may(p, s.key)
}

// act does what was decided. It tries every action, also after one has failed: none needs another of the same Decision.
func (s *stepping) act(ctx context.Context, d Decision) error {
	var faults []error
	for _, a := range d.Actions {
		done, err := s.do(ctx, a)
		switch {
		case err != nil:
			faults = append(faults, fmt.Errorf("%s proxy of epoch %d: %w", a.Verb, a.Epoch, err))
		case done:
			log.FromContext(ctx).Info("proxy changed", "action", string(a.Verb), "epoch", a.Epoch, "reason", a.Why)
		}
	}
	return errors.Join(faults...)
}

// do takes one step. It reports whether that has changed anything.
func (s *stepping) do(ctx context.Context, a Action) (done bool, err error) {
	switch a.Verb {
	case Start:
		return s.start(ctx, a)
	case Drain:
		return true, s.drain(ctx, a)
	case Stop:
		mine := s.answers[a.ID]
		mine.stopped = true
		s.answers[a.ID] = mine
		if !mine.ready {
			s.fault(reason(a.Why, mine.why))
		}
		return true, s.Runtime.Stop(ctx, a.ID, a.wait())
	case Remove:
		if err := s.Runtime.Remove(ctx, a.ID); err != nil {
			return false, err
		}
		delete(s.answers, a.ID)
		return true, s.home.forget(a.Epoch)
	}
	return false, nil
}

// reason joins why a proxy is ended with what it said when it was asked last.
func reason(why, said string) string {
	if said == "" {
		return why
	}
	return why + ": " + said
}

// drain notes the time before it tells the proxy, so that an agent that starts in between knows as well. A proxy that could not be told is
// told later.
func (s *stepping) drain(ctx context.Context, a Action) error {
	c := s.container(a.ID)
	if s.left() && (c == nil || c.StopSignal == "") {
		return s.home.note(factLeft, a.Epoch) // it has no successor, and may be used again
	}
	if err := s.home.note(factDraining, a.Epoch); err != nil {
		return err
	}
	if c == nil || c.StopSignal == "" {
		return nil // an Envoy's successor tells it; without a handover it is ended at DrainLimit
	}
	err := s.Runtime.Signal(ctx, a.ID, unix.SignalNum("SIG"+c.StopSignal))
	if err == nil || errors.Is(err, sidecar.ErrGone) {
		return nil
	}
	return errors.Join(err, s.home.unnote(factDraining, a.Epoch))
}

// container returns one of the sandbox's containers by its ID, or nil.
func (s *stepping) container(id string) *sidecar.Container {
	if i := slices.IndexFunc(s.there, func(c sidecar.Container) bool { return c.ID == id }); i >= 0 {
		return &s.there[i]
	}
	return nil
}

// fault notes that a proxy could not be started, or has ended without being told to.
func (s *stepping) fault(why string) {
	s.fail(time.Now(), why)
	s.Rollout.failed(s.choice.Profile, s.key)
}

// pollOf returns the time until the newest of the proxies that are starting is asked again.
func (s *stepping) pollOf(d Decision) time.Duration {
	var newest time.Time
	for _, id := range d.Ask {
		newest = later(newest, s.answers[id].seen)
	}
	return min(max(startPoll, time.Since(newest)/startPart), silentPoll)
}

// again returns when to look at the sandbox the next time.
func (s *stepping) again(d Decision) time.Duration {
	switch {
	case s.absent && s.choice.Ending:
		return cleanInterval
	case s.absent && time.Since(s.since) > lookFor:
		return sweepInterval
	case len(d.Actions) > 0 && !s.pulling:
		return startPoll
	case len(d.Ask) > 0:
		return s.pollOf(d)
	case d.Serving == "" && (s.choice.Ending || s.home.finished(time.Now())): // the pod is gone soon, or says that it has finished
		return cleanInterval
	}
	wait := sweepInterval
	if d.Serving != "" && s.choice.Profile != nil {
		wait = min(wait, s.period())
		if !s.answers[d.Serving].now {
			wait = silentPoll
		}
	}
	if !d.Again.IsZero() {
		wait = min(wait, max(time.Until(d.Again), startPoll))
	}
	return wait
}
