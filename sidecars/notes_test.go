package sidecars

import (
	"os"
	"testing"
	"time"
)

// A proxy that is told again to drain has no more time for it.
func TestNote_notedAgain_keepsTime(t *testing.T) {
	t.Parallel()
	h := home{path: t.TempDir()}
	if err := h.note(factDraining, 3); err != nil {
		t.Fatal(err)
	}
	before := time.Now().Add(-time.Hour).Truncate(time.Second)
	if err := os.Chtimes(h.noteOf(factDraining, 3), before, before); err != nil {
		t.Fatal(err)
	}
	if err := h.note(factDraining, 3); err != nil || !h.notedAt(factDraining, 3).Equal(before) {
		t.Errorf("noted at %s, want %s, error %v", h.notedAt(factDraining, 3), before, err)
	}
}
