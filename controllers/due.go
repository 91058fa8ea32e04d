package controllers

import (
	"encoding/binary"
	"hash/fnv"
	"time"

	"istio-pod-network-controller/internal/jitter"
)

// longestTick bounds the distance of the moments at which pods are due. Pods that are due within a tick are checked one after the other: to
// wake up for each costs more than its check. Each agent has moments of its own.
const longestTick = time.Second

// due returns when a pod is checked again: as its contention says, or every VerifyInterval at a time of its own. The zero time means never.
func (p *Programmer) due(e Entry) time.Time {
	switch {
	case e.contention.active():
		return e.contention.next(p.VerifyInterval)
	case p.VerifyInterval == 0 || e.checked.IsZero():
		return time.Time{}
	}
	return e.checked.Add(spread{p.VerifyInterval}.next(e.Sandbox.UID, e.checked).Sub(e.checked)) // unlike next's time, this one does not follow a clock that is set
}

// isDue reports whether the time of a pod's check has come.
func (p *Programmer) isDue(e Entry) bool {
	at := p.due(e)
	return !at.IsZero() && !time.Now().Before(at)
}

// wait returns how long it is until a pod is due; 0 means that it is not, until it changes.
func (p *Programmer) wait(uid string) time.Duration {
	e, ok := p.Ledger.Of(uid)
	at, now := p.due(e), time.Now()
	switch {
	case !ok || !e.Retry && at.IsZero():
		return 0
	case e.Retry || !at.After(now): // the last check could not be finished
		return jitter.Full(lastBackOff)
	}
	tick := longestTick
	if p.VerifyInterval > 0 {
		tick = min(tick, p.VerifyInterval/10)
	}
	return at.Sub(now) + tick - (time.Duration(at.UnixNano())+p.tickOffset)%tick
}

// spread distributes the pods' checks over an interval. A pod's phase within the interval comes from its UID and the clock alone: a
// restart of the agent does not align the checks of many pods. Each check is also late by a jitter of at most a tenth of the interval,
// so that the pod's checks do not run in step with something else that happens periodically.
type spread struct{ interval time.Duration }

// next returns the first time after t when the pod is due.
func (s spread) next(uid string, t time.Time) time.Time {
	phase := s.part(uid, 0, s.interval)
	for turn := (t.UnixNano()-int64(phase))/int64(s.interval) - 1; ; turn++ {
		at := time.Unix(0, turn*int64(s.interval)).Add(phase + s.part(uid, turn+1, s.interval/10))
		if at.After(t) {
			return at
		}
	}
}

// part returns a part of a duration, which depends on uid and n only.
func (spread) part(uid string, n int64, of time.Duration) time.Duration {
	if of <= 0 {
		return 0
	}
	h := fnv.New64a()
	_, _ = h.Write(binary.LittleEndian.AppendUint64([]byte(uid), uint64(n))) //nolint:gosec // any bits do
	// FNV's lower bits differ little for short inputs that differ in the last byte.
	sum := h.Sum64()
	sum ^= sum >> 33
	sum *= 0xff51afd7ed558ccd
	sum ^= sum >> 33
	return time.Duration(sum % uint64(of)) //nolint:gosec // smaller than of
}
