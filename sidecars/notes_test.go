package sidecars

import (
	"os"
	"testing"
	"time"

	"istio-pod-network-controller/internal/sidecar"
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

// Only proxies of the profile to which the rules lead are held.
func TestObserved_heldProfile_marksItsProxies(t *testing.T) {
	t.Parallel()
	v := view{choice: Choice{Held: "old"}, there: []sidecar.Container{{ID: "1", Labels: sidecar.Labels{Profile: "old"}}, {ID: "2", Labels: sidecar.Labels{Profile: "new"}}}}
	got := v.observed(false)
	if !got[0].Held || got[1].Held {
		t.Errorf("held: %v, %v", got[0].Held, got[1].Held)
	}
}
