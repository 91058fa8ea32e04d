package charttest

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// goldenManifests are the value sets whose whole manifest is compared: the defaults, all settings, and all features. The others differ in a
// few lines, of which other tests know; their notes are compared, too.
func goldenManifests() []string { return []string{"kubernetes", "custom", "features"} }

func TestGolden(t *testing.T) {
	for name, values := range cases(t) {
		t.Run(name, func(t *testing.T) {
			rel, err := install(t, values)
			if err != nil {
				t.Fatalf("render: %v", err)
			}
			if slices.Contains(goldenManifests(), name) {
				golden(t, name+".golden.yaml", rel.Manifest)
			}
			golden(t, name+".notes.txt", strings.TrimSpace(rel.Info.Notes)+"\n")
		})
	}
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	file = filepath.Join("testdata", file)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(read(t, file), got); diff != "" {
		t.Errorf("%s differs (-want +got); `make generate` writes it anew:\n%s", file, diff)
	}
}
