package sidecars

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Facts about a proxy that are noted in its home, for an agent that starts later.
const (
	factReady     = "ready"     // it serves, or has
	factSuccessor = "successor" // a proxy that takes over from it was about to be made
	factDraining  = "draining"  // it was told to finish its connections, at the time of the note
	factRotated   = "rotated"   // its secrets have changed, and a new proxy has to read them
	factFinished  = "finished"  // the application has ended; of the sandbox, not of an epoch
)

// note notes a fact about an epoch's proxy. A note that is there stays, with its time.
func (h home) note(fact string, epoch uint32) error {
	f, err := os.OpenFile(h.noteOf(fact, epoch), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("note a fact about a proxy: %w", err)
	}
	return f.Close()
}

// unnote takes a note away.
func (h home) unnote(fact string, epoch uint32) error {
	if err := os.Remove(h.noteOf(fact, epoch)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("take the note of a fact about a proxy away: %w", err)
	}
	return nil
}

// noted reports whether a fact is noted.
func (h home) noted(fact string, epoch uint32) bool {
	_, err := os.Lstat(h.noteOf(fact, epoch))
	return err == nil
}

func (h home) noteOf(fact string, epoch uint32) string {
	return filepath.Join(h.path, fact+"-"+number(epoch))
}

// notedAt returns when a fact was noted; zero if it was not.
func (h home) notedAt(fact string, epoch uint32) time.Time {
	info, err := os.Lstat(h.noteOf(fact, epoch))
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// noteFinished notes that the application has ended, for this agent and the next one.
func (h home) noteFinished() error {
	now, err := time.Now().MarshalText()
	if err == nil {
		err = os.WriteFile(h.noteOf(factFinished, 0), now, 0o600)
	}
	if err != nil {
		return fmt.Errorf("note that the application has ended: %w", err)
	}
	return nil
}

// finished reports whether the sandbox's application has ended lately.
func (h home) finished(now time.Time) bool {
	text, err := os.ReadFile(h.noteOf(factFinished, 0))
	var at time.Time
	return err == nil && at.UnmarshalText(text) == nil && now.Sub(at) < finishedFor
}
