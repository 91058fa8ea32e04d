package sidecars

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/plan"
	"istio-pod-network-controller/sidecars/probe"
)

const (
	// stepTimeout bounds one step, a pull of an image excepted.
	stepTimeout = 30 * time.Second
	// lookFor is how long a sandbox that does not run is looked at as if the runtime were starting it. Later it has ended.
	lookFor = 10 * time.Second
)

// step looks at one sandbox and does what is to be done: it reads, learns, decides, acts and reports. again is when to look the next time; 0 is
// never. Questions to proxies go on after it, until whole ends.
func (m *Manager) step(whole context.Context, key podnet.Key, f *followed, sandbox podnet.Sandbox) (again time.Duration, err error) {
	ctx, cancel := context.WithTimeout(whole, stepTimeout)
	defer cancel()
	if err := finishLate(ctx, m, key, f); err != nil {
		return 0, fmt.Errorf("tell proxies to finish: %w", err)
	}
	choice, err := m.Cluster.Choice(ctx, sandbox)
	if errors.Is(err, podnet.ErrNoPod) {
		m.Unfollow(key.PodUID)
		return 0, nil
	} else if err != nil {
		return 0, fmt.Errorf("read what the pod has chosen: %w", err)
	}
	there, seen, err := list(ctx, m, key, f)
	if err != nil {
		return 0, err
	}
	if choice.Name == "" && len(there) == 0 {
		m.dismiss(key, true)
		return 0, nil
	}
	m.mu.Lock()
	moved := f.profile != choice.Name
	f.profile = choice.Name
	m.mu.Unlock()
	s := stepping{m, f, view{key: key, sandbox: sandbox, choice: choice, home: m.Homes.Of(key), there: there, answers: f.answers}}
	if choice.Profile != nil {
		s.before, s.earlier, s.bad = m.good.Before(choice.Profile)
	}
	if moved { // its turn is one of the other profile
		s.look(m.Rollout.Leave(key))
	}

	// learn
	f.meet(there, time.Now())
	ends, hears := ending{s}, hearing{s}
	ends.believe(seen)
	hears.hear(ctx)
	renewSecrets(ctx, m.Secrets, m.Cluster, s.view, f)
	outdate(s.view)
	ends.hearHow(ctx)
	f.hearLastWords(time.Now())
	ends.note(ctx)
	hears.ask(whole)
	if hears.waits() {
		return sweepInterval, nil
	}
	s.before, s.earlier, s.bad = turning{s}.learn(ctx)

	// decide
	has, askAt := turning{s}.take(ctx)
	s.aim = turning{s}.version(has)
	decision := plan.Decide(s.desired(f, has != ""), s.observed(nobodyListens(ctx, m.Asker, s.view)), time.Now())
	if !askAt.IsZero() {
		decision.AgainAt(askAt)
	}

	// act, report
	if err := ends.finishWithApplication(ctx); err != nil {
		log.FromContext(ctx).Error(err, "proxy not told to finish with its application")
	}
	f.list.waits = len(decision.Actions) == 0 && len(decision.Ask) > 0
	did, err := s.act(ctx, decision)
	s.report(decision, did)
	if choice.Finished && len(there) == 0 {
		m.dismiss(key, false)
		return 0, nil
	}
	return ends.sooner(nextStep(hears, decision, did)), err
}

// list returns the sandbox's containers, oldest first, and the ends of processes that were seen before. Epochs of the pod's other sandboxes are not
// used again: a container's name in the runtime consists of the pod's UID and the epoch.
func list(ctx context.Context, m *Manager, key podnet.Key, f *followed) (there []sidecar.Container, seen map[string]seenEnd, err error) {
	m.mu.Lock()
	seen = maps.Clone(f.ends)
	m.mu.Unlock()
	untold := slices.ContainsFunc(f.list.containers, func(c sidecar.Container) bool { return f.answers[c.ID].untold })
	if len(seen) > 0 || untold || !f.list.waits || time.Since(f.list.at) >= listFor {
		f.list = listed{at: time.Now()}
		if f.list.containers, err = m.Runtime.List(ctx, key.PodUID); err != nil {
			return nil, nil, err
		}
	}
	m.mu.Lock()
	maps.DeleteFunc(f.ends, func(id string, _ seenEnd) bool { _, known := seen[id]; return known })
	m.mu.Unlock()
	for _, c := range f.list.containers {
		f.epoch = max(f.epoch, c.Epoch+1)
		if c.Sandbox == key.Sandbox {
			there = append(there, c)
		}
	}
	slices.SortFunc(there, func(a, b sidecar.Container) int { return cmp.Compare(a.Epoch, b.Epoch) })
	return there, seen, nil
}

func nextStep(s hearing, d plan.Decision, did outcome) time.Duration {
	switch {
	case did.absent && s.choice.Ending:
		return cleanInterval
	case did.absent && time.Since(s.memory.since) > lookFor:
		return sweepInterval
	case did.absent:
		return probe.StartPause(s.memory.since)
	case len(d.Actions) > 0 && !did.pulling:
		return probe.StartPoll
	case len(d.Ask) == 0 && (s.choice.Ending || d.Serving == "" && s.home.Finished(time.Now())): // the pod is gone soon, or says that it has finished
		return cleanInterval
	}
	wait := sweepInterval
	if at, some := s.nextQuestion(); some {
		wait = min(wait, time.Until(at))
	}
	if !d.Again.IsZero() {
		wait = min(wait, time.Until(d.Again))
	}
	return max(wait, probe.StartPoll)
}
