package sidecars

import (
	"context"
	"errors"
	"maps"
	"time"

	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/probe"
)

// errServesNot means that an Envoy has not taken over yet.
var errServesNot = errors.New("its admin interface does not say that it serves")

// ask begins the questions that are due: to the running proxies that do not drain, one at a time to each. Without a profile nobody knows how to
// ask them: they were left running. Questions go on after the reconcile, until ctx ends.
func ask(ctx context.Context, m *Manager, e *entry, o observed) observed {
	proxies, asked := maps.Clone(o.proxies), o // which the questions read after this call
	for _, c := range o.containers {
		p, present := proxies[c.ID], o.choice.Profile
		if !o.isAsked(c) || p.probes.Asking {
			continue
		}
		if !p.probes.Asked {
			p.probes.WasReady, p.probes.ReadyNow = present == nil, present == nil
			proxies[c.ID] = p
		}
		q, at := p.probes.Next(present, hasLiveness(o, c), p.seenSince)
		if q == probe.TakesOver && !o.takesOver(c) || time.Now().Before(at) {
			continue
		}
		p.probes = p.probes.Begun(q, time.Now())
		proxies[c.ID] = p
		answer := func() (serves bool, err error) { return answerOf(ctx, m.Asker, asked, c, q) }
		m.lanes.Ask(ctx, c.ID, q, p.probes, answer, func(r probe.Reply) { m.followed.replied(asked.key, e, r, r.Err != nil || !p.probes.IsSteady()) })
	}
	o.proxies = proxies
	return o
}

// answerOf returns nil if a proxy says yes. Old and new Envoy have the same ports: before the new one serves, the old one would answer for it.
func answerOf(ctx context.Context, asker Asker, o observed, c sidecar.Container, q probe.Question) (serves bool, err error) {
	if o.takesOver(c) && asker.Serves(ctx, o.sandbox, c.Epoch) != nil {
		return false, errServesNot
	}
	serves = c.HotRestart != nil
	if q == probe.TakesOver {
		return serves, nil
	}
	return serves, asker.Ask(ctx, o.sandbox, o.madeFrom(versionOf(c)), c.Epoch, q)
}

// hasLiveness reports whether a proxy can be asked whether it is alive: the question is also one of the version of the profile that it was made from.
func hasLiveness(o observed, c sidecar.Container) bool {
	p := o.madeFrom(versionOf(c))
	return p != nil && versionOf(c) == p.Hash && p.Spec.Liveness != nil
}

// waitsForAnswer reports whether a proxy that was found running has not answered yet. Until it has, nothing is decided or reported: it may serve.
func waitsForAnswer(o observed) bool {
	for _, c := range o.containers {
		if p := o.proxies[c.ID]; p.found && !p.probes.Asked && p.probes.Asking && o.choice.Profile != nil && o.isAsked(c) {
			return true
		}
	}
	return false
}

// nextQuestion returns when the next question is due that no running question delays.
func nextQuestion(o observed) (at time.Time, some bool) {
	for _, c := range o.containers {
		p := o.proxies[c.ID]
		if !o.isAsked(c) || p.probes.Asking && !p.probes.IsSteady() || o.choice.Profile == nil && !o.takesOver(c) {
			continue
		}
		_, next := p.probes.Next(o.choice.Profile, hasLiveness(o, c), p.seenSince)
		if p.probes.Asking { // one question at a time; an answer that is no news causes no reconcile
			next = later(next, time.Now().Add(probe.SlowAfter))
		}
		if !some || next.Before(at) {
			at, some = next, true
		}
	}
	return at, some
}
