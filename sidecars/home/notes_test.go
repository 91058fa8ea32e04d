package home

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A proxy that is told again to drain has no more time for it.
func TestNote_notedAgain_keepsTime(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		h := Home{Path: root}
		for range 3 {
			if err := h.Epoch(3).Note(Draining); err != nil {
				t.Fatal(err)
			}
			<-time.After(time.Minute)
		}
		if got := time.Since(h.Notes().At(Draining, 3)); got != 3*time.Minute {
			t.Errorf("noted %s ago, want 3m", got)
		}
	})
}

// Times are of the clock that starts with the node: nobody can set it, and each agent of the node has the same.
func TestNote_time_isNodesMonotonicClock(t *testing.T) {
	t.Parallel()
	h := Home{Path: t.TempDir()}
	before := monotonic()
	if err := h.Epoch(3).Note(Draining); err != nil {
		t.Fatal(err)
	}
	const slack = time.Millisecond
	if at := h.Notes()["draining-3"]; at < before-slack || at > monotonic()+slack {
		t.Errorf("noted at %s, the clock was at %s", at, before)
	}
	if left, err := os.ReadDir(h.Path); err != nil || len(left) != 1 || left[0].Name() != "state.json" {
		t.Errorf("the home has %v, error %v", left, err)
	}
}

// An application's end is noted while a worker notes something else: neither is lost. A file that cannot be read counts as none.
func TestNote_atOnce_losesNothing(t *testing.T) {
	t.Parallel()
	h := Home{Path: t.TempDir()}
	if err := os.WriteFile(filepath.Join(h.Path, "state.json"), []byte(`{"ready-`), 0o600); err != nil || h.Notes().Has(Ready, 0) {
		t.Fatal("an unreadable note counts", err)
	}
	const epochs = 20
	var writing sync.WaitGroup
	writing.Go(func() {
		if err := h.NoteFinished(); err != nil {
			t.Error(err)
		}
	})
	for epoch := range uint32(epochs) {
		writing.Go(func() {
			if err := h.Epoch(epoch).Note(Ready); err != nil {
				t.Error(err)
			}
		})
	}
	writing.Wait()
	if err := h.Epoch(0).Forget(); err != nil {
		t.Fatal(err)
	}
	if got := h.Notes(); len(got) != epochs || h.Notes().Has(Ready, 0) || !h.Notes().Finished(time.Now()) {
		t.Errorf("noted are %v", got)
	}
}
