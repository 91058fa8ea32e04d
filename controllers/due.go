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

// schedule distributes the pods' checks over an interval; 0 means that there are none. A pod's phase within the interval comes from its UID and
// the clock alone: a restart of the agent does not align the checks of many pods. Each check is also late by a jitter of at most a tenth of the
// interval, so that no check runs in step with the pod's own work. offset is the distance of the agent's ticks from the clock's.
type schedule struct{ interval, offset time.Duration }

// due returns when a pod is checked again: as its contention says, or every interval at a time of its own. The zero time means never.
func (s schedule) due(e Entry) time.Time {
	switch {
	case e.contention.active():
		return e.contention.next(s.interval)
	case s.interval == 0 || e.checked.IsZero():
		return time.Time{}
	}
	return e.checked.Add(s.next(e.Sandbox.UID, e.checked).Sub(e.checked)) // unlike next's time, this one does not follow a clock that is set
}

// isDue reports whether the time of a pod's check has come.
func (s schedule) isDue(e Entry) bool {
	at := s.due(e)
	return !at.IsZero() && !time.Now().Before(at)
}

// wait returns how long it is until a pod of the ledger is due; 0 means that it is not, until it changes.
func (s schedule) wait(e Entry, ok bool) time.Duration {
	at, now := s.due(e), time.Now()
	held := e.hold.again(now)
	switch {
	case ok && held > 0 && (at.IsZero() || now.Add(held).Before(at)):
		return held
	case !ok || !e.Retry && at.IsZero():
		return 0
	case e.Retry || !at.After(now): // the last check could not be finished
		return jitter.Full(lastBackOff)
	}
	tick := longestTick
	if s.interval > 0 {
		tick = min(tick, s.interval/10)
	}
	return at.Sub(now) + tick - (time.Duration(at.UnixNano())+s.offset)%tick
}

// next returns the first time after t when the pod is due.
func (s schedule) next(uid string, t time.Time) time.Time {
	phase := s.part(uid, 0, s.interval)
	for turn := (t.UnixNano()-int64(phase))/int64(s.interval) - 1; ; turn++ {
		at := time.Unix(0, turn*int64(s.interval)).Add(phase + s.part(uid, turn+1, s.interval/10))
		if at.After(t) {
			return at
		}
	}
}

// part returns a part of a duration, which depends on uid and n only.
func (schedule) part(uid string, n int64, of time.Duration) time.Duration {
	if of <= 0 {
		return 0
	}
	h := fnv.New64a()
	_, _ = h.Write(binary.LittleEndian.AppendUint64([]byte(uid), uint64(n)))
	// FNV's lower bits differ little for short inputs that differ in the last byte.
	sum := h.Sum64()
	sum ^= sum >> 33
	sum *= 0xff51afd7ed558ccd
	sum ^= sum >> 33
	return time.Duration(sum % uint64(of))
}
