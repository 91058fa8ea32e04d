package shared

import (
	"context"
	"errors"
	"maps"
	"time"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/sidecars"
)

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

// namesAgain is the time between two looks at the name of a network namespace that is served.
const namesAgain = 2 * time.Second

// namespaces remembers what it has seen of the names of the members' network namespaces.
type namespaces struct {
	Sandboxes
	seen map[podnet.Key]time.Time // when the name was seen last
	lost map[podnet.Key]bool      // the name was lost in the middle of a round
}

// gone reports whether a sandbox's network namespace no longer has the name that the proxy knows.
func (n namespaces) gone(ctx context.Context, s podnet.Sandbox, known string, now time.Time) bool {
	key := s.Key()
	if now.Sub(n.seen[key]) <= namesAgain {
		return false
	}
	name, err := n.Name(ctx, s)
	if errors.Is(err, podnet.ErrGone) || err == nil && name != known || err != nil && n.lost[key] {
		return true
	}
	if err == nil {
		delete(n.lost, key)
		n.seen[key] = now
	}
	return false
}

// vanished reports whether the network namespace of a member has lost its name since the round began. The next round takes the sandbox of such
// a pod for ended.
func (n namespaces) vanished(ctx context.Context, members []member) (lost bool) {
	for _, m := range members {
		name, err := n.Name(ctx, m.Sandbox)
		if ctx.Err() == nil && (err != nil || name != m.Data.NetNS) && !n.lost[m.key()] {
			n.lost[m.key()], lost = true, true
			delete(n.seen, m.key())
		}
	}
	return lost
}

// forget drops sandboxes that are missing in there.
func (n namespaces) forget(there map[podnet.Key]bool) {
	maps.DeleteFunc(n.seen, func(key podnet.Key, _ time.Time) bool { return !there[key] })
	maps.DeleteFunc(n.lost, func(key podnet.Key, _ bool) bool { return !there[key] })
}

// screen shows pods, and remembers what it has shown, by UID.
type screen struct {
	sidecars.Reporter
	shown map[string]shownPod
}

type shownPod struct {
	sandbox podnet.Sandbox
	status  sidecars.Status
}

func (s screen) show(p podnet.Sandbox, status sidecars.Status) {
	if now := (shownPod{p, status}); s.shown[p.UID] != now {
		s.shown[p.UID] = now
		s.Report(p, status)
	}
}
