package sidecars

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"istio-pod-network-controller/internal/printable"
	"istio-pod-network-controller/internal/sidecar"
)

const (
	// endedUnknown is said of a proxy whose container is gone.
	endedUnknown = "it has ended, and the runtime no longer knows how"
	// endedUntold is said of a proxy until the runtime tells how it has ended.
	endedUntold = "it has ended"
)

// ending is the part of a step that learns of ends: of proxies, and of the application.
type ending struct{ stepping }

// note notes, once for each, the proxies that have ended without being told to.
func (s ending) note(ctx context.Context) {
	s.noteLost(ctx)
	onFailure := s.choice.Profile != nil && s.choice.Profile.Spec.RestartPolicy == restartOnFailure
	for i, c := range s.there {
		a := s.answers[c.ID]
		if c.State != sidecar.Exited || s.expected(a) {
			continue
		}
		if s.goes(ctx) {
			a.ended = true
			s.answers[c.ID] = a
			continue
		}
		end, err := s.Runtime.End(ctx, c.ID)
		untold := s.untold(c.ID, err)
		if untold && onFailure {
			s.there[i].State = sidecar.Running // whether it is started again depends on how it has ended
			continue
		}
		a = s.answers[c.ID]
		a.ended, a.well = true, err == nil && end.ExitCode == 0
		s.answers[c.ID] = a
		if onFailure && a.found && a.well || s.isDone(c) { // found: it was done for the last agent, and the profile has changed since
			_ = s.home.Forget(c.Epoch) // what cannot be removed goes with the home
			continue
		}
		s.noteEnd(ctx, a, howEnded(end, err, untold))
		s.memory.bare, s.memory.log = s.memory.why, end.LogPath
		if untold {
			s.memory.last = c.ID
		}
		s.memory.hearLastWords(time.Now())
	}
}

func howEnded(end sidecar.End, err error, untold bool) string {
	switch {
	case untold:
		return endedUntold
	case err != nil:
		return endedUnknown
	}
	return fmt.Sprintf("it has ended with exit code %d (%s)", end.ExitCode, end.Reason)
}

// hearHow adds how the last proxy has ended to why, once the runtime tells.
func (s ending) hearHow(ctx context.Context) {
	f := s.memory
	if f.last == "" {
		return
	}
	end, err := s.Runtime.End(ctx, f.last)
	if s.untold(f.last, err) {
		return
	}
	f.bare, f.log, f.last = strings.TrimSuffix(f.bare, endedUntold)+howEnded(end, err, false), end.LogPath, ""
	f.why = f.bare
}

// noteLost notes the proxies that have ended and are no longer listed: the kubelet removes containers that have ended, and may be faster.
func (s ending) noteLost(ctx context.Context) {
	for id, a := range s.answers {
		if s.container(id) != nil {
			continue
		}
		expected := s.expected(a)
		delete(s.answers, id)
		_ = s.home.Forget(a.epoch) // what cannot be removed goes with the home
		if expected || s.goes(ctx) {
			continue
		}
		s.noteEnd(ctx, a, endedUnknown)
	}
}

// hearLastWords adds the last words to why the last proxy has ended, as far as the runtime has written them.
func (f *followed) hearLastWords(now time.Time) {
	if f.log == "" {
		return
	}
	if words := lastWords(f.log); words != "" { // the log may be gone meanwhile
		f.why = f.bare + words
	}
	if now.Sub(f.failed) > wordsTime {
		f.log = ""
	}
}

// tailBytes is how much of the end of a log is read.
const tailBytes = 8 << 10

func lastWords(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close() //nolint:errcheck // it was only read
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return ""
	} else if info.Size() > tailBytes {
		if _, err := f.Seek(-tailBytes, io.SeekEnd); err != nil {
			return ""
		}
	}
	text, err := io.ReadAll(io.LimitReader(f, tailBytes))
	if err != nil {
		return ""
	}
	var lines []string
	for line := range bytes.Lines(text) {
		if words, ok := sidecar.LogText(strings.TrimSpace(string(line))); ok {
			lines = append(lines, words)
		}
	}
	if len(lines) == 0 {
		return ""
	}
	return "; its last words: " + printable.Words(strings.Join(lines, " / "))
}
