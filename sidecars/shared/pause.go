package shared

import "time"

// Bounds of the pauses after refusals and changes of a pod, and the time after which they are short again.
const (
	firstPause  = time.Second
	firstChange = 10 * time.Second
	lastPause   = time.Minute
	calmTime    = 2 * time.Minute
	// firstFailure and lastFailure are the bounds after a failed reload: a proxy may pause its listeners in all pods meanwhile.
	firstFailure = 5 * time.Second
	lastFailure  = 10 * time.Minute
	// lastUnread is the longest one after a pod could not be read, which begins with errorPause.
	lastUnread = 10 * time.Second
)

type backoff struct {
	times int
	until time.Time
	why   string
}

// note begins a pause: the first one, or twice the last one if that is not long over.
func (b *backoff) note(now time.Time, first, last time.Duration, why string) {
	if b.calm(now) {
		b.times = 0
	}
	const doublings = 10 // of a second to more than lastFailure
	b.until, b.why = now.Add(min(first<<min(b.times, doublings), last)), why
	b.times++
}

func (b *backoff) calm(now time.Time) bool { return now.Sub(b.until) > calmTime }

func (b *backoff) over(now time.Time) bool { return !now.Before(b.until) }

// podPauses bound what one pod can cause.
type podPauses struct {
	refused backoff // after its configuration was refused
	changed backoff // after a change of its own was put into force
	joined  backoff // after it has joined, until it may join again
	unread  backoff // after it could not be read
}

func (p *podPauses) calm(now time.Time) bool {
	return p.refused.calm(now) && p.changed.calm(now) && p.joined.calm(now) && p.unread.calm(now)
}

// pausing has the pauses of each pod, by UID.
type pausing map[string]*podPauses

func (p pausing) of(podUID string) *podPauses {
	if p[podUID] == nil {
		p[podUID] = &podPauses{}
	}
	return p[podUID]
}

// badProfile is a version of the profile that the proxy has not taken.
type badProfile struct {
	backoff
	hash string
}
