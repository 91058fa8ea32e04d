package sidecars

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Facts about a proxy that are noted in its home, for an agent that starts later.
const (
	factReady     = "ready"     // it serves, or has
	factSuccessor = "successor" // a proxy that takes over from it was about to be made
	factTelling   = "telling"   // it was about to be told to finish its connections: its end is no failure
	factDraining  = "draining"  // it was told to finish its connections, at the time of the note
	factRotated   = "rotated"   // its secrets have changed, and a new proxy has to read them
	factFinished  = "finished"  // the application has ended; of the sandbox, not of an epoch
)

// notes is what state.json in a home has: the noted facts, and when each was noted, as time of the node's monotonic clock. That clock starts with
// the node, as the home does, and nobody sets it. The file is replaced as a whole.
type notes map[string]time.Duration

func factOf(fact string, epoch uint32) string { return fact + "-" + number(epoch) }

// started is when this program started, by its own clock and by the node's.
var started = struct {
	at   time.Time
	node time.Duration
}{time.Now(), monotonic()}

func monotonic() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // which every Linux has
	return time.Duration(now.Nano())
}

// nodeTime returns the node's monotonic clock as Go's own clock has it, which tests can let pass.
func nodeTime() time.Duration { return started.node + time.Since(started.at) }

// notes returns what is noted. An unreadable file counts as none.
func (h home) notes() (out notes) {
	text, err := os.ReadFile(h.stateFile())
	if err != nil || json.Unmarshal(text, &out) != nil {
		return nil
	}
	return out
}

func (h home) stateFile() string { return filepath.Join(h.path, "state.json") }

// change replaces what is noted. The home is locked meanwhile: a hook of the runtime may note something while a worker does.
func (h home) change(f func(notes)) error {
	dir, err := os.Open(h.path)
	if err != nil {
		return fmt.Errorf("note a fact about a proxy: %w", err)
	}
	defer dir.Close() //nolint:errcheck // it was only locked
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("note a fact about a proxy: lock %s: %w", h.path, err)
	}
	before := h.notes()
	now := maps.Clone(before)
	if now == nil {
		now = notes{}
	}
	if f(now); maps.Equal(before, now) {
		return nil
	}
	if err := ReplaceFile(h.stateFile(), now); err != nil {
		return fmt.Errorf("note a fact about a proxy: %w", err)
	}
	return nil
}

// ReplaceFile writes a value as JSON into a file that only the node's root can read, whole or not at all.
func ReplaceFile(path string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// note notes a fact about an epoch's proxy. A note that is there stays, with its time.
func (h home) note(fact string, epoch uint32) error {
	return h.change(func(s notes) {
		if _, noted := s[factOf(fact, epoch)]; !noted {
			s[factOf(fact, epoch)] = nodeTime()
		}
	})
}

// unnote takes notes of an epoch away. A missing home has none.
func (h home) unnote(epoch uint32, facts ...string) error {
	err := h.change(func(s notes) {
		for _, fact := range facts {
			delete(s, factOf(fact, epoch))
		}
	})
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

func (h home) noted(fact string, epoch uint32) bool {
	_, noted := h.notes()[factOf(fact, epoch)]
	return noted
}

// notedAt returns when a fact was noted; zero if it was not.
func (h home) notedAt(fact string, epoch uint32) time.Time { return h.notes().at(factOf(fact, epoch)) }

// at returns the time of a note; zero without one.
func (s notes) at(key string) time.Time {
	at, noted := s[key]
	if !noted {
		return time.Time{}
	}
	return time.Now().Add(at - nodeTime())
}

// noteFinished notes that the application has ended, for this agent and the next one.
func (h home) noteFinished() error {
	return h.change(func(s notes) { s[factFinished] = nodeTime() })
}

func (h home) finished(now time.Time) bool {
	at := h.notes().at(factFinished)
	return !at.IsZero() && now.Sub(at) < finishedFor
}
