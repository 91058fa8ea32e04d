package sidecars

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"istio-pod-network-controller/internal/sidecar"
)

// endedUnknown is said of a proxy whose container is gone.
const endedUnknown = "it has ended, and the runtime no longer knows how"

// noteEnds notes, once for each, the proxies that have ended without being told to.
func (s *stepping) noteEnds(ctx context.Context) {
	s.noteLost(ctx)
	for _, c := range s.there {
		a := s.answers[c.ID]
		if c.State != sidecar.Exited || a.ended || !s.home.drainedAt(c.Epoch).IsZero() || a.stopped || s.replaced(c.Epoch) {
			continue
		}
		a.ended = true
		s.answers[c.ID] = a
		if s.goes(ctx) {
			continue
		}
		end, err := s.Runtime.End(ctx, c.ID)
		why := endedUnknown
		if err == nil {
			why = fmt.Sprintf("it has ended with exit code %d (%s)", end.ExitCode, end.Reason)
		}
		if a.well = err == nil && end.ExitCode == 0; a.well {
			s.answers[c.ID] = a
		}
		if s.isDone(c) {
			s.home.discard(c.Epoch)
			continue
		}
		s.noteEnd(ctx, a, why)
		s.bare, s.log = s.why, end.LogPath
		s.hearLastWords(time.Now())
	}
}

// done reports whether the sandbox's proxy is not started again. See isDone.
func (s *stepping) done() bool { return slices.ContainsFunc(s.there, s.isDone) }

// isDone reports whether no proxy is started after this one until the profile changes: restartPolicy is OnFailure, it ended with code 0, and
// neither a newer one nor one that takes connections is there. Its container is kept to tell the next agent. The kubelet keeps it, too,
// as the newest of its name.
func (s *stepping) isDone(c sidecar.Container) bool {
	p := s.choice.Profile
	if p == nil || p.Spec.RestartPolicy != restartOnFailure || p.Hash != versionOf(c) || s.choice.Finished {
		return false
	}
	another := slices.ContainsFunc(s.there, func(o sidecar.Container) bool {
		return o.Epoch > c.Epoch || o.State == sidecar.Running && s.home.drainedAt(o.Epoch).IsZero()
	})
	return c.State == sidecar.Exited && s.answers[c.ID].well && !another
}

// taken returns which other process listens on a port of a proxy that ended before it was ready, or "".
func (s *stepping) taken(ctx context.Context, a answer) string {
	if s.choice.Profile == nil || a.ready {
		return ""
	}
	if err := s.Asker.Ask(ctx, s.sandbox, s.choice.Profile, a.epoch); errors.Is(err, ErrPortTaken) {
		return err.Error() + "; "
	}
	return ""
}

// goes reports whether the end of a proxy is no failure: the pod, the application or the sandbox ends, or the pod's rules lead elsewhere.
func (s *stepping) goes(ctx context.Context) bool {
	if s.choice.Ending || s.left() || s.home.finished(time.Now()) {
		return true
	}
	ready, err := s.Runtime.Ready(ctx, s.key.Sandbox)
	return err == nil && !ready
}

// noteLost notes the proxies that have ended and are no longer listed: the kubelet removes containers that have ended, and may be faster.
func (s *stepping) noteLost(ctx context.Context) {
	for id, a := range s.answers {
		listed := slices.ContainsFunc(s.there, func(c sidecar.Container) bool { return c.ID == id })
		if listed {
			continue
		}
		expected := a.ended || a.stopped || !s.home.drainedAt(a.epoch).IsZero() || s.replaced(a.epoch)
		delete(s.answers, id)
		s.home.discard(a.epoch)
		if expected || s.goes(ctx) {
			continue
		}
		s.noteEnd(ctx, a, endedUnknown)
	}
}

// noteEnd notes that a proxy has ended by itself, and why.
func (s *stepping) noteEnd(ctx context.Context, a answer, why string) {
	if a.ready {
		s.restarts++
	}
	s.fault(s.taken(ctx, a) + why)
}
