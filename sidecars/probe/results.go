// Package probe asks proxies whether they are ready and alive, outside of the reconciles.
//
//	lanes.go    questions in goroutines of their own
//	results.go  what is asked, what the answers mean, and when the next question is due
package probe

import (
	"strconv"
	"time"

	"istio-pod-network-controller/sidecars/profile"
)

const (
	// StartPoll is the shortest time between two looks at a sandbox or proxy that is starting. Later it is one part in startPart of the time that
	// the start has taken, and SilentPoll at most: see StartPause.
	StartPoll = 20 * time.Millisecond
	startPart = 8
	// SilentPoll is the time between two questions to a proxy that has missed one. It doubles with each further one, up to lastSilentPoll.
	SilentPoll     = time.Second
	lastSilentPoll = 10 * time.Second
)

// Results is how a proxy has answered so far.
type Results struct {
	// Readiness and Liveness are how it answers the two questions.
	Readiness, Liveness Pulse
	// Asking reports whether a question waits for its answer, Asked whether it was ever answered, or refused, whether it is ready, and Slow whether
	// the last question took long.
	Asking, Asked, Slow bool
	FirstReadyAt        time.Time // when it first answered
	WasReady            bool      // it has answered once
	ReadyNow            bool      // it has not missed too many questions since
	HungAt              time.Time // when it had missed too many questions whether it is alive
}

// Reply is how a proxy has answered a question.
type Reply struct {
	ID   string // of its container
	To   Question
	At   time.Time // when it was asked or, if it has not answered, when that was given up
	Err  error
	Slow bool
	// Serves reports whether it is an Envoy that has taken over.
	Serves bool
}

// Pulse is how a proxy answers one question, again and again.
type Pulse struct {
	At     time.Time // of the last reply, or of the question that waits for one
	Missed int       // in a row
	Why    string    // why the last one was missed, or ""
}

// IsHung reports whether too many questions in a row were missed, as to liveness.
func (p Pulse) IsHung(by *profile.Version) bool {
	return by != nil && by.Spec.Liveness != nil && p.Missed >= max(1, int(by.Spec.Liveness.FailureThreshold))
}

func (p Pulse) after(r Reply) Pulse {
	if r.Err == nil {
		return Pulse{At: r.At}
	}
	return Pulse{At: r.At, Missed: p.Missed + 1, Why: r.Err.Error()}
}

// After returns the results after a reply. The proxy is no longer ready once it has missed threshold questions in a row.
func (a Results) After(r Reply, threshold int) Results {
	a.Asking, a.Slow = false, r.Slow
	switch r.To {
	case Alive:
		a.Liveness = a.Liveness.after(r)
		return a
	case TakesOver:
		a.Readiness.At = r.At
		return a
	case Ready:
	}
	a.Asked = true
	if r.Serves && !a.WasReady {
		a.WasReady, a.Readiness.Missed = true, 0
	}
	a.Readiness = a.Readiness.after(r)
	if a.Readiness.Missed == 0 {
		a.WasReady, a.ReadyNow = true, true
		if a.FirstReadyAt.IsZero() {
			a.FirstReadyAt = r.At
		}
	}
	a.ReadyNow = a.ReadyNow && a.Readiness.Missed < threshold
	return a
}

// Begun returns the results once a question is asked.
func (a Results) Begun(q Question, now time.Time) Results {
	a.Asking = true
	if q == Alive {
		a.Liveness.At = now
	} else {
		a.Readiness.At = now
	}
	return a
}

// IsSteady reports whether a proxy has answered all that it was asked, so that its next answer is no news.
func (a Results) IsSteady() bool {
	return a.ReadyNow && a.Readiness.Missed == 0 && a.Liveness.Missed == 0
}

// Next returns the next question, and when it is due. since is when the container was first seen. Without a profile only an Envoy can be asked.
func (a Results) Next(p *profile.Version, hasLiveness bool, since time.Time) (q Question, at time.Time) {
	if !a.Readiness.At.IsZero() {
		at = a.Readiness.At.Add(a.pause(p, since))
	}
	if p == nil {
		return TakesOver, at
	}
	if !hasLiveness || !a.WasReady || !a.HungAt.IsZero() {
		return Ready, at
	}
	last := a.Liveness.At
	if a.FirstReadyAt.After(last) {
		last = a.FirstReadyAt
	}
	if alive := last.Add(time.Duration(max(1, p.Spec.Liveness.PeriodSeconds)) * time.Second); alive.Before(at) {
		return Alive, alive
	}
	return Ready, at
}

// pause returns the time between two questions whether the proxy is ready.
func (a Results) pause(p *profile.Version, since time.Time) time.Duration {
	switch {
	case p == nil, !a.Asked, !a.WasReady:
		return StartPause(since)
	case a.Readiness.Missed == 0:
		return time.Duration(p.Spec.Readiness.PeriodSeconds) * time.Second
	}
	const doublings = 4
	return min(SilentPoll<<min(a.Readiness.Missed-1, doublings), lastSilentPoll)
}

// StartPause returns the time between two looks at a sandbox or proxy that has been starting since then.
func StartPause(since time.Time) time.Duration {
	return min(max(StartPoll, time.Since(since)/startPart), SilentPoll)
}

// Hangs says that a proxy was replaced since it hung.
func (a Results) Hangs() string {
	return "it was replaced, since it had missed " + strconv.Itoa(a.Liveness.Missed) + " questions of liveness in a row: " + a.Liveness.Why
}

// Question is what a proxy is asked.
type Question int

// The questions.
const (
	Ready     Question = iota
	Alive              // whether a proxy that has been ready still works; it is replaced if it does not
	TakesOver          // whether an Envoy serves, where no profile says what else to ask it
)

// Of returns where and how the proxy of an epoch is asked.
func (q Question) Of(p *profile.Version, epoch uint32) profile.Probe {
	if q == Alive {
		return p.Liveness(epoch)
	}
	return p.Readiness(epoch)
}
