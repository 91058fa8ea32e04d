package program

import (
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// module writes a module of two small programs. The second one is broken, if wanted.
func module(t *testing.T, broken bool) Set {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "go.mod"), "module example.com/m\n\ngo 1.26\n")
	for name, text := range map[string]string{"first": "package main\n\nfunc main() {}\n", "v2": "package main\n\nfunc main() {}\n"} {
		if name == "v2" && broken {
			text = "package main\n\nfunc main() { undefined() }\n"
		}
		write(t, filepath.Join(dir, name, "main.go"), text)
	}
	return Set{Dir: filepath.Join(dir, "bin"), pins: dir, ldflags: "-s -w", recipes: []Recipe{
		{Output: "net/second", Package: "example.com/m/v2"},
		{Output: "first", Package: "example.com/m/first", Cgo: true},
	}}
}

func build(t *testing.T, s Set) (string, error) {
	t.Helper()
	missing, err := s.Missing()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	err = s.Build(t.Context(), missing, &out)
	return out.String(), err
}

func TestBuild_programsOfTwoSteps_haveTheirNames(t *testing.T) {
	s := module(t, false)
	out, err := build(t, s)
	if err != nil {
		t.Fatal(err)
	}
	first, second := strings.Index(out, "building first"), strings.Index(out, "building net/second")
	if first < 0 || second < first {
		t.Errorf("want the program with C code first:\n%s", out)
	}
	if missing, err := s.Missing(); err != nil || len(missing) > 0 {
		t.Errorf("missing %v, %v", missing, err)
	}
	if left, _ := filepath.Glob(filepath.Join(s.Dir, "*.partial")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestBuild_laterProgramFails_earlierOnesStay(t *testing.T) {
	s := module(t, true)
	_, err := build(t, s)
	if err == nil || !strings.Contains(err.Error(), "undefined: undefined") || strings.Contains(err.Error(), "C code") {
		t.Fatalf("got %v; want the compiler's words", err)
	}
	missing, err := s.Missing()
	if err != nil || len(missing) != 1 || missing[0].Output != "net/second" {
		t.Errorf("missing %v, %v; want the broken one only", missing, err)
	}
}

func TestBuild_packageThatIsNotThere_goIsHeard(t *testing.T) {
	s := module(t, false)
	s.recipes[0].Package = "example.com/m/missing"
	out, err := build(t, s)
	if err == nil || !strings.Contains(out, "example.com/m/missing") {
		t.Errorf("got %v, %s; want what go says", err, out)
	}
}

func TestBuild_leftByABuildThatWasKilled_isRemoved(t *testing.T) {
	s := module(t, false)
	write(t, filepath.Join(s.partial(s.recipes[1:]), "etcd"), "")
	if _, err := build(t, s); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(s.Dir, "*.partial")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestMeterSaysWhatIsLeft(t *testing.T) {
	start := time.Unix(1000, 0)
	linked := 0
	m := newMeter([]string{"a", "b/c", "d", "e"}, 1, func() int { return linked })
	m.start = start
	if got, want := m.report(start), "0 of 4 packages compiled, 0 of 1 programs linked"; got != want {
		t.Errorf("at the start: got %q, want %q", got, want)
	}
	if _, err := m.Write([]byte("a\nb/c\n")); err != nil {
		t.Fatal(err)
	}
	if got, want := m.report(start.Add(time.Minute)), "2 of 4 packages compiled, 0 of 1 programs linked, about 6 min left"; got != want {
		t.Errorf("after a minute: got %q, want %q", got, want)
	}
	linked = 1
	if got, want := m.report(start.Add(time.Minute)), "2 of 4 packages compiled, 1 of 1 programs linked, less than a minute left"; got != want {
		t.Errorf("linked: got %q, want %q", got, want)
	}
	if got, want := m.withoutPackages("a\n# b/c\nx.go:1: wrong\nd\n"), "# b/c\nx.go:1: wrong\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
