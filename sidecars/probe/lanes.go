package probe

import (
	"context"
	"time"
)

const (
	// quickQuestions and slowQuestions bound the questions that are asked at once: to proxies that have answered in time, or refused, and to
	// slow ones.
	quickQuestions = 32
	slowQuestions  = 16
	// SlowAfter is how long a question may take until its proxy counts as slow.
	SlowAfter = 500 * time.Millisecond
)

// Lanes are where questions are asked, each in a goroutine of its own: a proxy that does not answer delays no other one. Slow proxies have a lane of
// their own.
type Lanes struct{ quick, slow chan struct{} }

// NewLanes returns lanes in which nothing is asked.
func NewLanes() Lanes {
	return Lanes{make(chan struct{}, quickQuestions), make(chan struct{}, slowQuestions)}
}

// Ask asks a container's proxy, whose last answers are known, and passes its reply on, unless ctx ends before it is its turn.
func (l Lanes) Ask(ctx context.Context, id string, q Question, before Results, ask func() (serves bool, err error), answered func(Reply)) {
	lane := l.quick
	if before.Slow {
		lane = l.slow
	}
	go func() {
		select {
		case lane <- struct{}{}:
		case <-ctx.Done():
			return
		}
		began := time.Now()
		serves, err := ask()
		<-lane
		r := Reply{ID: id, To: q, At: began, Err: err, Slow: time.Since(began) >= SlowAfter, Serves: serves}
		if err != nil {
			r.At = time.Now()
		}
		answered(r)
	}()
}
