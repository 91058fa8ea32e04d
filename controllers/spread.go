package controllers

import (
	"encoding/binary"
	"hash/fnv"
	"time"
)

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
