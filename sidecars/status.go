package sidecars

import (
	"slices"
	"time"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/sidecar"
)

// restartOnFailure is the restart policy under which a proxy that ends with code 0 is not started again.
const restartOnFailure = "OnFailure"

// endedWell is said of a proxy that is not started again.
const endedWell = "it has ended with exit code 0, and by its profile's restartPolicy (OnFailure) it is not started again"

// Status is how a pod's proxy is.
type Status struct {
	Profile string
	State   v1alpha1.State
	Ready   bool
	// Epoch, Image and Hash are those of the proxy that serves, or of the newest if none does.
	Epoch       uint32
	Image, Hash string
	// Serves is the profile of a proxy that is ready, or "". It is not Profile while a pod moves from one to the other.
	Serves      string
	Restarts    int32
	Message     string
	LastUpgrade time.Time
	// Final reports whether nothing follows: the pod has finished.
	Final bool
	// Failure is why the last proxy ended or could not be started, or "".
	Failure string
}

// settle ends a look at a sandbox: it notes an upgrade that has succeeded, and reports.
func (s *stepping) settle(d Decision) {
	serving := slices.IndexFunc(s.there, func(c sidecar.Container) bool { return c.ID == d.Serving })
	if p := s.choice.Profile; p != nil && serving >= 0 && s.there[serving].Hash == p.Hash {
		if next, freed := s.Rollout.done(p, s.key); freed {
			s.upgraded = time.Now()
			s.look(next)
		}
		if time.Since(later(s.failed, s.answers[d.Serving].calm)) > calmTime {
			s.failures, s.why, s.log = 0, "", ""
		}
	}
	status := s.status(d, serving)
	s.Reporter.Report(s.sandbox, status)
	s.show(status)
}

// status describes what was decided. serving is the index of the container that serves, or -1.
func (s *stepping) status(d Decision, serving int) Status {
	out := Status{
		Profile: s.choice.Name, State: s.state(d), Restarts: s.restarts, LastUpgrade: s.upgraded, Message: s.why, Failure: s.why,
		Final: s.hasFinished(d),
	}
	switch {
	case s.choice.Refusal != "":
		out.Message = s.choice.Refusal
	case s.done():
		out.Message, out.Failure = endedWell, ""
	case s.answers[d.Serving].why != "":
		out.Message = "it does not answer: " + s.answers[d.Serving].why
	case s.stale != "" && s.why != "":
		out.Message = s.why + "; " + s.stale
	case s.stale != "":
		out.Message = s.stale
	}
	shown := serving
	if shown < 0 {
		shown = len(s.there) - 1
	}
	if shown >= 0 {
		c := s.there[shown]
		out.Epoch, out.Image, out.Hash = c.Epoch, c.Image, versionOf(c)
		out.Ready = serving >= 0 && s.answers[c.ID].now
		if out.Ready {
			out.Serves = c.Profile
		}
	}
	return out
}

// hasFinished reports whether the pod has finished, and its proxy with it.
func (s *stepping) hasFinished(d Decision) bool { return s.choice.Finished && d.Serving == "" }

func (s *stepping) state(d Decision) v1alpha1.State {
	starts := slices.ContainsFunc(d.Actions, func(a Action) bool { return a.Verb == Start })
	switch {
	case s.hasFinished(d), s.done(), d.Serving == "" && s.home.finished(time.Now()):
		return v1alpha1.Ended
	case d.Serving != "" && (len(d.Ask) > 0 || starts):
		return v1alpha1.Upgrading
	case d.Serving != "":
		return v1alpha1.Running
	case s.choice.Profile == nil:
		return v1alpha1.Refused
	case s.pulling:
		return v1alpha1.Pulling
	case len(d.Ask) > 0 || starts && s.failures == 0:
		return v1alpha1.Starting
	}
	return v1alpha1.Failed
}
