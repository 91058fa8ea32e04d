package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestOverrideLeavesOneValueOfEachVariable(t *testing.T) {
	got := override([]string{"A=1", "PATH=/old", "B=2=3"}, map[string]string{"PATH": "/new", "C": "4"})
	if diff := cmp.Diff([]string{"A=1", "B=2=3", "C=4", "PATH=/new"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestProgramsAreFoundByTheGivenPath(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	for file, mode := range map[string]os.FileMode{
		filepath.Join(first, "tool"): 0o600, filepath.Join(second, "tool"): 0o700,
	} {
		if err := os.WriteFile(file, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	environ := []string{"PATH=" + first + ":" + second}
	got, err := lookPath("tool", environ)
	if want := filepath.Join(second, "tool"); got != want || err != nil {
		t.Errorf("got %s, %v; want %s: the other one cannot be run", got, err, want)
	}
	if _, err := lookPath("absent", environ); err == nil {
		t.Error("no error for an absent program")
	}
	if got, err := lookPath("/bin/sh", environ); got != "/bin/sh" || err != nil {
		t.Errorf("got %s, %v", got, err)
	}
}
