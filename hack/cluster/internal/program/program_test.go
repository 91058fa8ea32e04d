package program

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestKubernetesVersionComesFromThePins(t *testing.T) {
	tests := map[string]struct {
		mod, want string
		wantErr   bool
	}{
		"in a block":     {mod: "module m\nrequire (\n\tk8s.io/api v0.1.0\n\tk8s.io/kubernetes v1.37.2 // indirect\n)\n", want: "v1.37.2"},
		"on its own":     {mod: "module m\nrequire k8s.io/kubernetes v1.40.0\n", want: "v1.40.0"},
		"tool line only": {mod: "module m\ntool k8s.io/kubernetes/cmd/kubelet\n", wantErr: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, "go.mod"), tt.mod)
			got, err := KubernetesVersion(dir)
			if (err != nil) != tt.wantErr || got != tt.want {
				t.Errorf("got %q, %v; want %q", got, err, tt.want)
			}
		})
	}
}

func TestEveryRecipeIsPinned(t *testing.T) {
	for _, r := range Recipes() {
		if pins := read(t, "../../programs/go.mod"); !strings.Contains(pins, "\t"+r.Package+"\n") {
			t.Errorf("no tool line for %s", r.Package)
		}
	}
}

func TestKeyChangesWithWhatDecidesTheBuild(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "go.mod"), "module m")
	write(t, filepath.Join(dir, "go.sum"), "")
	recipes := []Recipe{{Output: "a"}, {Output: "b"}}
	base := mustKey(t, "go1.26.6", "-s", recipes, dir)
	if again := mustKey(t, "go1.26.6", "-s", recipes, dir); again != base {
		t.Errorf("equal input, keys %s and %s", base, again)
	}
	if k := mustKey(t, "go1.27.0", "-s", recipes, dir); k == base {
		t.Error("another compiler has the same key")
	}
	if k := mustKey(t, "go1.26.6", "-s -w", recipes, dir); k == base {
		t.Error("other flags have the same key")
	}
	if k := mustKey(t, "go1.26.6", "-s", recipes[1:], dir); k == base {
		t.Error("other recipes have the same key")
	}
	write(t, filepath.Join(dir, "go.sum"), "x")
	if k := mustKey(t, "go1.26.6", "-s", recipes, dir); k == base {
		t.Error("another go.sum has the same key")
	}
}

func TestSteps_programsWithoutCCode_shareACommand(t *testing.T) {
	var got [][]string
	for _, step := range steps([]Recipe{{Output: "a"}, {Output: "b"}, {Output: "c", Cgo: true}}) {
		got = append(got, outputs(step))
	}
	if diff := cmp.Diff([][]string{{"c"}, {"a", "b"}}, got); diff != "" {
		t.Error(diff)
	}
}

// runc wants packages that a machine may lack, and is built in seconds.
func TestSteps_programWithCCode_isFirst(t *testing.T) {
	if got := steps(Recipes()); len(got) == 0 || got[0][0].Output != "runc" {
		t.Errorf("steps %v: want runc first", got)
	}
}

func TestMissing_named_isThereOrNoProgram(t *testing.T) {
	s := Set{Dir: t.TempDir(), recipes: []Recipe{{Output: "a"}, {Output: "cni/b"}}}
	write(t, filepath.Join(s.Dir, "a"), "")
	if got, err := s.Missing("a"); err != nil || len(got) != 0 {
		t.Errorf("got %v, %v; a is there", got, err)
	}
	if _, err := s.Missing("a", "c"); err == nil || !strings.Contains(err.Error(), `"c"`) {
		t.Errorf("got %v; there is no program c", err)
	}
}

func mustKey(t *testing.T, goVersion, ldflags string, r []Recipe, dir string) string {
	t.Helper()
	k, err := key(goVersion, ldflags, r, dir)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
