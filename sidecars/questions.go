package sidecars

import (
	"context"
	"strconv"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/home"
	"istio-pod-network-controller/sidecars/profile"
)

const (
	// quickQuestions and slowQuestions bound the questions that are asked at once: to proxies that have answered in time, or refused, and to
	// slow ones.
	quickQuestions = 32
	slowQuestions  = 16
	// slowAfter is how long a question may take until its proxy counts as slow.
	slowAfter = 500 * time.Millisecond
	// startPoll is the shortest time between two looks at a sandbox or proxy that is starting. Later it is one part in startPart of the time that
	// the start has taken, and silentPoll at most: see startPause.
	startPoll = 20 * time.Millisecond
	startPart = 8
	// silentPoll is the time between two questions to a proxy that has missed one. It doubles with each further one, up to lastSilentPoll.
	silentPoll     = time.Second
	lastSilentPoll = 10 * time.Second
)

// Question is what a proxy is asked.
type Question int

// The questions.
const (
	IsReady   Question = iota
	IsAlive            // whether a proxy that has been ready still works; it is replaced if it does not
	takesOver          // whether an Envoy serves, where no profile says what else to ask it
)

// Of returns where and how the proxy of an epoch is asked.
func (q Question) Of(p *profile.Version, epoch uint32) v1alpha1.Readiness {
	if q == IsAlive {
		return p.Liveness(epoch)
	}
	return p.Readiness(epoch)
}

// questions are asked outside of the workers, each in a goroutine of its own: a proxy that does not answer delays no other one. Slow proxies have
// places of their own.
type questions struct{ quick, slow chan struct{} }

// reply is how a proxy has answered a question.
type reply struct {
	id   string // of its container
	to   Question
	at   time.Time // when it was asked or, if it has not answered, when that was given up
	err  error
	slow bool
	// serves reports whether it is an Envoy that has taken over.
	serves bool
}

// pulse is how a proxy answers one question, again and again.
type pulse struct {
	at     time.Time // of the last reply, or of the question that waits for one
	missed int       // in a row
	why    string    // why the last one was missed, or ""
}

func (p *pulse) hear(r reply) {
	p.at, p.why = r.at, ""
	if r.err == nil {
		p.missed = 0
		return
	}
	p.missed++
	p.why = r.err.Error()
}

// isHung reports whether too many questions in a row were missed, as to liveness.
func (p *pulse) isHung(by *profile.Version) bool {
	return by != nil && by.Spec.Liveness != nil && p.missed >= max(1, int(by.Spec.Liveness.FailureThreshold))
}

// hear notes what a proxy has answered. It is no longer ready once it has missed threshold questions in a row.
func (a *answer) hear(r reply, threshold int) {
	a.asking, a.slow = false, r.slow
	switch r.to {
	case IsAlive:
		a.alive.hear(r)
		return
	case takesOver:
		a.readiness.at = r.at
		return
	case IsReady:
	}
	a.heard = true
	if r.serves && !a.ready {
		a.ready, a.readiness.missed = true, 0
	}
	a.readiness.hear(r)
	if a.readiness.missed == 0 {
		a.ready, a.now = true, true
		if a.calm.IsZero() {
			a.calm = r.at
		}
	}
	a.now = a.now && a.readiness.missed < threshold
}

// calmly reports whether a proxy has answered all that it was asked, so that its next answer is no news.
func (a answer) calmly() bool { return a.now && a.readiness.missed == 0 && a.alive.missed == 0 }

func (a answer) next(p *profile.Version, hasLiveness bool) (q Question, at time.Time) {
	if !a.readiness.at.IsZero() {
		at = a.readiness.at.Add(a.pause(p))
	}
	if p == nil {
		return takesOver, at
	}
	if !hasLiveness || !a.ready || !a.hung.IsZero() {
		return IsReady, at
	}
	if alive := later(a.alive.at, a.calm).Add(time.Duration(max(1, p.Spec.Liveness.PeriodSeconds)) * time.Second); alive.Before(at) {
		return IsAlive, alive
	}
	return IsReady, at
}

// pause returns the time between two questions whether the proxy is ready.
func (a answer) pause(p *profile.Version) time.Duration {
	switch {
	case p == nil, !a.heard, !a.ready:
		return startPause(a.seen)
	case a.readiness.missed == 0:
		return time.Duration(p.Spec.Readiness.PeriodSeconds) * time.Second
	}
	const doublings = 4
	return min(silentPoll<<min(a.readiness.missed-1, doublings), lastSilentPoll)
}

// startPause returns the time between two looks at a sandbox or proxy that has been starting since then.
func startPause(since time.Time) time.Duration {
	return min(max(startPoll, time.Since(since)/startPart), silentPoll)
}

// hangs says that a proxy was replaced since it hung.
func (a answer) hangs() string {
	return "it was replaced, since it had missed " + strconv.Itoa(a.alive.missed) + " questions of liveness in a row: " + a.alive.why
}

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
		a, known := s.answers[r.id]
		if !known {
			continue
		}
		a.hear(r, threshold)
		c := s.container(r.id)
		runs := c != nil && s.asks(*c)
		a.now = a.now && runs
		s.answers[r.id] = a
		if !runs {
			continue
		}
		if a.hung.IsZero() && a.alive.isHung(s.choice.Profile) && !s.goes(ctx) {
			s.noteEnd(ctx, a, a.hangs())
			a.hung = s.memory.failed
			s.answers[r.id] = a
		}
		if r.serves {
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
		if !s.asks(c) || a.asking {
			continue
		}
		if !a.heard {
			a.ready, a.now = p == nil, p == nil
			s.answers[c.ID] = a
		}
		q, at := a.next(p, s.hasLiveness(c))
		if q == takesOver && !s.overtakes(c) || time.Now().Before(at) {
			continue
		}
		a.asking = true
		if q == IsAlive {
			a.alive.at = time.Now()
		} else {
			a.readiness.at = time.Now()
		}
		s.answers[c.ID] = a
		go s.question(ctx, c, q, a)
	}
}

// question asks a proxy. The sandbox is looked at for the answer if it is news.
func (s hearing) question(ctx context.Context, c sidecar.Container, q Question, before answer) {
	lane := s.questions.quick
	if before.slow {
		lane = s.questions.slow
	}
	select {
	case lane <- struct{}{}:
	case <-ctx.Done():
		return
	}
	began := time.Now()
	serves, err := s.answer(ctx, c, q)
	<-lane
	r := reply{id: c.ID, to: q, at: began, err: err, slow: time.Since(began) >= slowAfter, serves: serves}
	if err != nil {
		r.at = time.Now()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.memory.replies = append(s.memory.replies, r)
	if s.known[s.key] == s.memory && (err != nil || !before.calmly()) {
		s.queue.Add(s.key)
	}
}

// answer returns nil if a proxy says yes. Old and new Envoy have the same ports: before the new one serves, the old one would answer for it.
func (s hearing) answer(ctx context.Context, c sidecar.Container, q Question) (serves bool, err error) {
	if s.overtakes(c) && s.Asker.Serves(ctx, s.sandbox, c.Epoch) != nil {
		return false, errServesNot
	}
	serves = c.HotRestart != nil
	if q == takesOver {
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
		if a := s.answers[c.ID]; a.found && !a.heard && a.asking && s.choice.Profile != nil && s.asks(c) {
			return true
		}
	}
	return false
}

// nextQuestion returns when the next question is due that no running question delays.
func (s hearing) nextQuestion() (at time.Time, some bool) {
	for _, c := range s.there {
		a := s.answers[c.ID]
		if !s.asks(c) || a.asking && !a.calmly() || s.choice.Profile == nil && !s.overtakes(c) {
			continue
		}
		_, next := a.next(s.choice.Profile, s.hasLiveness(c))
		if a.asking { // one question at a time; a calm answer causes no step
			next = later(next, time.Now().Add(slowAfter))
		}
		if !some || next.Before(at) {
			at, some = next, true
		}
	}
	return at, some
}
