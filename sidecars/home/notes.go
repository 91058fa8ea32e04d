package home

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Note is noted in a home about a proxy, for an agent that starts later.
type Note string

// The notes.
const (
	Ready     Note = "ready"     // it serves, or has
	Successor Note = "successor" // a proxy that takes over from it was about to be made
	Telling   Note = "telling"   // it was about to be told to finish its connections: its end is no failure
	Draining  Note = "draining"  // it was told to finish its connections, at the time of the note
	Rotated   Note = "rotated"   // its secrets have changed, and a new proxy has to read them
	// User is noted about a user of the node in place of an epoch: proxies of the sandbox have run as it. Their listeners, which a successor may have
	// taken over, are still its.
	User Note = "user"
)

// finishedNote is noted once the application has ended.
const finishedNote = "finished"

// FinishedFor is how long no proxy is started in a sandbox whose application has ended. The runtime ends the sandbox within seconds;
// if it does not, the application may have been started again after all.
const FinishedFor = 30 * time.Second

// Notes are the facts in a home's state.json, each with the time of its note by the node's monotonic clock. That clock starts with
// the node, as the home does, and nobody sets it. The file is replaced as a whole.
type Notes map[string]time.Duration

func keyOf(kind Note, epoch uint32) string { return string(kind) + "-" + number(epoch) }

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

// Notes returns what is noted. An unreadable file counts as none.
func (h Home) Notes() Notes {
	out, _ := ReadFile[Notes](stateFile(h))
	return out
}

func stateFile(h Home) string { return filepath.Join(h.Path, "state.json") }

// change replaces what is noted. The home is locked meanwhile: a hook of the runtime may note something while a worker does.
func (h Home) change(f func(Notes)) error {
	dir, err := os.Open(h.Path)
	if err != nil {
		return fmt.Errorf("note something about a proxy: %w", err)
	}
	defer dir.Close() //nolint:errcheck // it was only locked
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("note something about a proxy: lock %s: %w", h.Path, err)
	}
	before, now := h.Notes(), Notes{}
	maps.Copy(now, before)
	if f(now); maps.Equal(before, now) {
		return nil
	}
	if err := ReplaceFile(stateFile(h), now); err != nil {
		return fmt.Errorf("note something about a proxy: %w", err)
	}
	return nil
}

// ReplaceFile writes a value as JSON into a file that only the node's root can read, whole or not at all.
func ReplaceFile(path string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil { // on a disk a file without its content would be left after a power cut
		return err
	}
	return os.Rename(path+".new", path)
}

// ReadFile returns the value that ReplaceFile has written, or its type's zero value and why it cannot be read.
func ReadFile[T any](path string) (value T, err error) {
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &value)
	}
	if err != nil {
		return *new(T), err
	}
	return value, nil
}

// Note notes something about the proxy. A note that is there stays, with its time.
func (e Epoch) Note(kind Note) error { return note(e.home, keyOf(kind, e.number)) }

func note(h Home, key string) error {
	return h.change(func(s Notes) {
		if _, noted := s[key]; !noted {
			s[key] = nodeTime()
		}
	})
}

// Unnote takes notes of the proxy away. A missing home has none.
func (e Epoch) Unnote(kinds ...Note) error {
	err := e.home.change(func(s Notes) {
		for _, kind := range kinds {
			delete(s, keyOf(kind, e.number))
		}
	})
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// Has reports whether something was noted.
func (n Notes) Has(kind Note, epoch uint32) bool {
	_, noted := n[keyOf(kind, epoch)]
	return noted
}

// At returns when something was noted; zero if it was not.
func (n Notes) At(kind Note, epoch uint32) time.Time { return n.at(keyOf(kind, epoch)) }

func (n Notes) at(key string) time.Time {
	at, noted := n[key]
	if !noted {
		return time.Time{}
	}
	return time.Now().Add(at - nodeTime())
}

// Users returns the users of the node that proxies of the sandbox have run as: other ones than the profile's in a pod with a user namespace.
func (n Notes) Users() (out []uint32) {
	for key := range n {
		if id, is := strings.CutPrefix(key, string(User)+"-"); is {
			if uid, err := strconv.ParseUint(id, 10, 32); err == nil {
				out = append(out, uint32(uid))
			}
		}
	}
	slices.Sort(out)
	return out
}

// With returns the notes and one more about an epoch's proxy. A note that is there stays, with its time.
func (n Notes) With(kind Note, epoch uint32) Notes {
	if n.Has(kind, epoch) {
		return n
	}
	return n.with(keyOf(kind, epoch))
}

// WithFinished returns the notes and that the application has ended.
func (n Notes) WithFinished() Notes { return n.with(finishedNote) }

func (n Notes) with(key string) Notes {
	out := Notes{}
	maps.Copy(out, n)
	out[key] = nodeTime()
	return out
}

// Finished reports whether the application has ended lately.
func (n Notes) Finished(now time.Time) bool {
	at := n.at(finishedNote)
	return !at.IsZero() && now.Sub(at) < FinishedFor
}

// NoteFinished notes that the application has ended, for this agent and the next one.
func (h Home) NoteFinished() error {
	return h.change(func(s Notes) { s[finishedNote] = nodeTime() })
}
