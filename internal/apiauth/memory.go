package apiauth

import (
	"crypto/sha256"
	"fmt"
	"time"

	"k8s.io/utils/lru"
)

// mostDecisions is how many decisions of a sort are remembered.
const mostDecisions = 128

// decision is the hash of a token and of one thing to do. Neither is kept: callers without rights choose both, and their length.
type decision [sha256.Size]byte

func decisionOn(token string, to Attributes) decision {
	return sha256.Sum256(fmt.Appendf(nil, "%q %q", token, to))
}

// memory has the newest decisions of a sort, each of which counts for a bounded time.
type memory struct {
	time    time.Duration
	entries *lru.Cache
}

// remembered is a decision's error and when it was asked for.
type remembered struct {
	err   error
	since time.Time
}

func newMemory(lifetime time.Duration) *memory {
	return &memory{time: lifetime, entries: lru.New(mostDecisions)}
}

// get returns a decision that is not too old. known means that there is one, however old.
func (m *memory) get(key decision, now time.Time) (r remembered, ok, known bool) {
	entry, _ := m.entries.Get(key)
	r, known = entry.(remembered)
	return r, known && now.Sub(r.since) < m.time, known
}

func (m *memory) drop(key decision) { m.entries.Remove(key) }

func (m *memory) put(key decision, err error, now time.Time) {
	m.entries.Add(key, remembered{err, now})
}
