package shared

import "time"

// Bounds of the pauses after refusals and changes of a pod, and the time after which they are short again.
const (
	firstPause  = time.Second
	firstChange = 10 * time.Second
	lastPause   = time.Minute
	calmTime    = 2 * time.Minute
)

// backoff is a pause that grows.
type backoff struct {
	times int
	last  time.Time
	until time.Time
	why   string
}

// note begins a pause: the first one, or twice the last one if that is not long ago.
func (b *backoff) note(now time.Time, first time.Duration, why string) {
	if now.Sub(b.last) > calmTime {
		b.times = 0
	}
	pause := first
	for range b.times {
		pause = min(2*pause, lastPause)
	}
	b.times++
	b.last, b.until, b.why = now, now.Add(pause), why
}

func (b *backoff) over(now time.Time) bool { return !now.Before(b.until) }

// podPauses bound what one pod can cause.
type podPauses struct {
	refused backoff // after its configuration was refused
	changed backoff // after a change of its own was put into force
}

// pausesOf returns a pod's.
func (g *group) pausesOf(podUID string) *podPauses {
	p := g.pauses[podUID]
	if p == nil {
		p = &podPauses{}
		g.pauses[podUID] = p
	}
	return p
}

// badProfile is a version of the profile that the proxy has not taken.
type badProfile struct {
	backoff
	hash string
}
