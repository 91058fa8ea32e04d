package sidecars

import (
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/home"
	"istio-pod-network-controller/sidecars/probe"
)

// hearing is the part of a step that hears what proxies have answered, and asks them.
type hearing struct{ stepping }

// hear notes what the proxies have answered since the last step. That an Envoy serves is noted in the home: once it has a successor it no longer
// says so, as its admin interface is closed first.
func (s hearing) hear(ctx context.Context) {
	s.mu.Lock()
	replies := s.memory.replies
	s.memory.replies = nil
	s.mu.Unlock()
	threshold := 1
	if p := s.choice.Profile; p != nil {
		threshold = max(1, int(p.Spec.Readiness.FailureThreshold))
	}
	for _, r := range replies {
		a, known := s.answers[r.ID]
		if !known {
			continue
		}
		a.probes = a.probes.After(r, threshold)
		c := s.container(r.ID)
		runs := c != nil && s.asks(*c)
		a.probes.ReadyNow = a.probes.ReadyNow && runs
		s.answers[r.ID] = a
		if !runs {
			continue
		}
		if a.probes.HungAt.IsZero() && a.probes.Liveness.IsHung(s.choice.Profile) && !s.goes(ctx) {
			s.noteEnd(ctx, a, a.probes.Hangs())
			a.probes.HungAt = s.memory.failed
			s.answers[r.ID] = a
		}
		if r.Serves {
			s.noteServes(ctx, c.Epoch)
		}
	}
	for _, c := range s.there { // an earlier answer does not say whether it has taken over: it is asked now, once, as it is noted or ended then
		if s.isOrphan(c) && s.Asker.Serves(ctx, s.sandbox, c.Epoch) == nil {
			s.noteServes(ctx, c.Epoch)
		}
	}
}

func (s hearing) noteServes(ctx context.Context, epoch uint32) {
	if err := s.home.Note(home.Ready, epoch); err != nil {
		log.FromContext(ctx).Error(err, "proxy that serves not noted", "epoch", epoch)
	}
}

// ask begins the questions that are due: to the running proxies that do not drain, one at a time to each. Without a profile nobody knows how to
// ask them: they were left running.
func (s hearing) ask(ctx context.Context) {
	for _, c := range s.there {
		a, p := s.answers[c.ID], s.choice.Profile
		if !s.asks(c) || a.probes.Asking {
			continue
		}
		if !a.probes.Asked {
			a.probes.WasReady, a.probes.ReadyNow = p == nil, p == nil
			s.answers[c.ID] = a
		}
		q, at := a.probes.Next(p, s.hasLiveness(c), a.seen)
		if q == probe.TakesOver && !s.overtakes(c) || time.Now().Before(at) {
			continue
		}
		a.probes = a.probes.Begun(q, time.Now())
		s.answers[c.ID] = a
		ask := func() (serves bool, err error) { return s.answer(ctx, c, q) }
		s.lanes.Ask(ctx, c.ID, q, a.probes, ask, func(r probe.Reply) { s.answered(r, a.probes) })
	}
}

// answered notes a reply. The sandbox is looked at for it if it is news.
func (s hearing) answered(r probe.Reply, before probe.Results) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.memory.replies = append(s.memory.replies, r)
	if s.known[s.key] == s.memory && (r.Err != nil || !before.IsSteady()) {
		s.queue.Add(s.key)
	}
}

// answer returns nil if a proxy says yes. Old and new Envoy have the same ports: before the new one serves, the old one would answer for it.
func (s hearing) answer(ctx context.Context, c sidecar.Container, q probe.Question) (serves bool, err error) {
	if s.overtakes(c) && s.Asker.Serves(ctx, s.sandbox, c.Epoch) != nil {
		return false, errServesNot
	}
	serves = c.HotRestart != nil
	if q == probe.TakesOver {
		return serves, nil
	}
	return serves, s.Asker.Ask(ctx, s.sandbox, s.madeFrom(versionOf(c)), c.Epoch, q)
}

// asks reports whether a proxy is asked: it runs, and does not drain.
func (s hearing) asks(c sidecar.Container) bool {
	return c.State == sidecar.Running && !s.drains(c.Epoch)
}

// hasLiveness reports whether a proxy can be asked whether it is alive: the question is also one of the version of the profile that it was made from.
func (s hearing) hasLiveness(c sidecar.Container) bool {
	p := s.madeFrom(versionOf(c))
	return p != nil && versionOf(c) == p.Hash && p.Spec.Liveness != nil
}

// waits reports whether a proxy that was found running has not answered yet. Until it has, nothing is decided or reported: it may serve.
func (s hearing) waits() bool {
	for _, c := range s.there {
		if a := s.answers[c.ID]; a.found && !a.probes.Asked && a.probes.Asking && s.choice.Profile != nil && s.asks(c) {
			return true
		}
	}
	return false
}

// nextQuestion returns when the next question is due that no running question delays.
func (s hearing) nextQuestion() (at time.Time, some bool) {
	for _, c := range s.there {
		a := s.answers[c.ID]
		if !s.asks(c) || a.probes.Asking && !a.probes.IsSteady() || s.choice.Profile == nil && !s.overtakes(c) {
			continue
		}
		_, next := a.probes.Next(s.choice.Profile, s.hasLiveness(c), a.seen)
		if a.probes.Asking { // one question at a time; a calm answer causes no step
			next = later(next, time.Now().Add(probe.SlowAfter))
		}
		if !some || next.Before(at) {
			at, some = next, true
		}
	}
	return at, some
}
