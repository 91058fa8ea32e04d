package home

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// filled is a root with a home for each name, which has a file.
func filled(t *testing.T, names ...string) Homes {
	t.Helper()
	h := Homes{Root: t.TempDir()}
	for _, name := range names {
		if err := os.MkdirAll(filepath.Join(h.Root, name, "secrets-0"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(h.Root, name, "secrets-0", "key"), []byte("k"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

func (h Homes) names(t *testing.T) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(h.Root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestRemoveEnded_sandboxEnded_removesHome(t *testing.T) {
	h := filled(t, "u1.runs", "u2.ended", "u3.gone", "routes")
	ready := func(_ context.Context, sandbox string) (bool, error) { return sandbox == "runs", nil }
	want := []string{"u2.ended", "u3.gone"}
	if got, used, err := h.RemoveEnded(t.Context(), ready, true); err != nil || !used || !slices.Equal(got, want) || len(h.names(t)) != 4 {
		t.Errorf("dry: %v, %v, %v", got, err, h.names(t))
	}
	if got, used, err := h.RemoveEnded(t.Context(), ready, false); err != nil || !used || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	if got := h.names(t); !slices.Equal(got, []string{"routes", "u1.runs"}) {
		t.Errorf("%v are left", got)
	}
	none := func(context.Context, string) (bool, error) { return false, nil }
	want = []string{"u1.runs"}
	if got, used, err := h.RemoveEnded(t.Context(), none, true); err != nil || used || !slices.Equal(got, want) || len(h.names(t)) != 2 {
		t.Errorf("dry: %v, %v, %v", got, err, h.names(t))
	}
	if got, used, err := h.RemoveEnded(t.Context(), none, false); err != nil || used || !slices.Equal(got, want) || len(h.names(t)) != 1 {
		t.Errorf("%v, %v, %v", got, err, h.names(t))
	}
}

// A runtime that does not answer has not said that the sandbox has ended.
func TestRemoveEnded_runtimeAway_removesNothing(t *testing.T) {
	h, away := filled(t, "u1.s1"), errors.New("the runtime is away")
	got, _, err := h.RemoveEnded(t.Context(), func(context.Context, string) (bool, error) { return false, away }, false)
	if !errors.Is(err, away) || len(got) > 0 || len(h.names(t)) != 1 {
		t.Errorf("%v, %v, %v", got, err, h.names(t))
	}
	if got, _, err := (Homes{Root: filepath.Join(h.Root, "none")}).RemoveEnded(t.Context(), nil, false); err != nil || len(got) > 0 {
		t.Errorf("without a directory: %v, %v", got, err)
	}
}

// A directory of a shared proxy goes once neither a proxy nor an agent uses it.
func TestRemoveUnshared_directories_onlyUnusedGo(t *testing.T) {
	h := filled(t, "locked", "runs", "left", "new")
	for _, name := range []string{"locked", "left"} {
		if err := os.WriteFile(filepath.Join(h.Root, name, "lock"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	agent, err := os.Open(filepath.Join(h.Root, "locked", "lock"))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(agent.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	runs := func(_ context.Context, profile string) (bool, error) { return profile == "runs", nil }
	want := []string{"left", "new"}
	if got, err := RemoveUnshared(t.Context(), h.Root, runs, true); err != nil || !slices.Equal(got, want) || len(h.names(t)) != 4 {
		t.Errorf("dry: %v, %v, %v", got, err, h.names(t))
	}
	if got, err := RemoveUnshared(t.Context(), h.Root, runs, false); err != nil || !slices.Equal(got, want) || !slices.Equal(h.names(t), []string{"locked", "runs"}) {
		t.Errorf("%v, %v, %v", got, err, h.names(t))
	}
	if err := agent.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := RemoveUnshared(t.Context(), h.Root, runs, false); err != nil || !slices.Equal(got, []string{"locked"}) {
		t.Errorf("without the agent: %v, %v", got, err)
	}
	if got, err := RemoveUnshared(t.Context(), filepath.Join(h.Root, "none"), nil, false); err != nil || len(got) > 0 {
		t.Errorf("without a directory: %v, %v", got, err)
	}
	away := errors.New("the runtime is away")
	if got, err := RemoveUnshared(t.Context(), h.Root, func(context.Context, string) (bool, error) { return false, away }, false); !errors.Is(err, away) || len(got) > 0 {
		t.Errorf("%v, %v", got, err)
	}
}
