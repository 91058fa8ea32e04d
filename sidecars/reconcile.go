package sidecars

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/sidecars/probe"
)

const (
	// reconcileTimeout bounds one reconcile, a pull of an image excepted.
	reconcileTimeout = 30 * time.Second
	// lookFor is how long a sandbox that does not run is looked at as if the runtime were starting it. Later it has ended.
	lookFor = 10 * time.Second
)

// reconcile looks at one sandbox and does what is to be done: it observes, learns, decides, acts and reports. It returns what to remember, and when to
// look the next time; 0 is never. Questions to proxies go on after it, until whole ends.
func reconcile(whole context.Context, m *Manager, e *entry, s podnet.Sandbox, in inbox) (mem memory, again time.Duration, err error) {
	ctx, cancel := context.WithTimeout(whole, reconcileTimeout)
	defer cancel()
	mem = e.memory
	if err := finishLate(ctx, m.Runtime, s.Key(), m.Homes.Of(s.Key()), in.finishedAt); err != nil {
		return mem, 0, fmt.Errorf("tell proxies to finish: %w", err)
	}

	o, mem, err := observe(ctx, m, s, mem, in.exits)
	switch {
	case errors.Is(err, podnet.ErrNoPod):
		m.Unfollow(s.UID)
		return mem, 0, nil
	case err != nil:
		return mem, 0, err
	case o.choice.Name == "" && len(o.containers) == 0:
		dismiss(m, o.key, true)
		return mem, 0, nil
	}
	if m.followed.heard(e, in, o.choice.Name) { // its slot is one of the other profile
		left(m, []podnet.Key{o.key})
	}

	o, mem = learn(ctx, m, o, mem, in)
	o = ask(whole, m, e, o)
	mem.proxies = o.proxies
	if waitsForAnswer(o) {
		return mem, sweepInterval, nil
	}
	o = noteGood(ctx, m, o)

	slot, askAt := takeSlot(ctx, m, o, mem)
	d := decide(o, mem, slot, nobodyListens(ctx, m.Asker, o), time.Now())
	if !askAt.IsZero() {
		d.plan.AgainAt(askAt)
	}

	if err := finishWithApplication(ctx, m.Runtime, o); err != nil {
		log.FromContext(ctx).Error(err, "proxy not told to finish with its application")
	}
	mem.list.waits = len(d.plan.Actions) == 0 && len(d.plan.Awaited) > 0
	ready := route(m, o, d)
	mem = awaitRules(ctx, m, o, mem, len(ready.plan.Actions) < len(d.plan.Actions))
	o, mem, did, err := act(ctx, m, o, mem, ready)

	mem = report(m, o, mem, d, did.pulling)
	mem.proxies = o.proxies
	if o.choice.Finished && len(o.containers) == 0 {
		dismiss(m, o.key, false)
		return mem, 0, nil
	}
	return mem, tellAgain(o, nextLook(o, mem, ready, did)), err
}

func nextLook(o observed, mem memory, d decision, did outcome) time.Duration {
	switch {
	case did.absent && o.choice.Ending:
		return cleanInterval
	case did.absent && time.Since(mem.since) > lookFor:
		return sweepInterval
	case did.absent:
		return probe.StartPause(mem.since)
	case len(d.plan.Actions) > 0 && !did.pulling:
		return probe.StartPoll
	case len(d.plan.Awaited) == 0 && (o.choice.Ending || d.plan.Serving == "" && o.notes.Finished(time.Now())): // the pod is gone soon, or says that it has finished
		return cleanInterval
	}
	wait := sweepInterval
	if at, some := nextQuestion(o); some {
		wait = min(wait, time.Until(at))
	}
	if !d.plan.Again.IsZero() {
		wait = min(wait, time.Until(d.plan.Again))
	}
	if !mem.rulesSince.IsZero() {
		wait = min(wait, time.Until(mem.rulesSince.Add(rulesLimit)))
	}
	return max(wait, probe.StartPoll)
}
