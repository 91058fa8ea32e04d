package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestChoose_words_nameCells(t *testing.T) {
	list := []Cell{{Name: "kernel-6.1-a", Testless: true}, {Name: "kernel-6.1-b"}, {Name: "kernel-6.12-a", Testless: true}, {Name: "e2e-nri"}}
	conditions := map[string]func(Cell) (bool, error){
		"all":     func(Cell) (bool, error) { return true, nil },
		"stale":   func(c Cell) (bool, error) { return c.Testless, nil },
		"touched": func(Cell) (bool, error) { return false, nil },
		"broken":  func(Cell) (bool, error) { return true, errors.New("no history") },
	}
	for words, want := range map[string]string{
		"stale":                "kernel-6.1-a kernel-6.12-a",
		"touched":              "",
		"touched e2e":          "e2e-nri",
		"broken":               "error",
		"all":                  "kernel-6.1-a kernel-6.1-b kernel-6.12-a e2e-nri",
		"kernel":               "kernel-6.1-a kernel-6.1-b kernel-6.12-a",
		"kernel-6.1":           "kernel-6.1-a kernel-6.1-b",
		"kernel-6.1-b e2e-nri": "kernel-6.1-b e2e-nri",
		"e2e all":              "e2e-nri kernel-6.1-a kernel-6.1-b kernel-6.12-a",
		"kernel nothing":       "error",
	} {
		t.Run(words, func(t *testing.T) {
			chosen, err := choose(list, words, conditions)
			var got []string
			for _, c := range chosen {
				got = append(got, c.Name)
			}
			if err != nil {
				got = []string{"error"}
			}
			if strings.Join(got, " ") != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

// A cell notes in a file that it ran.
func noting(root, name, status string) Cell {
	return Cell{Name: name, Shows: "a note", Command: []string{"sh", "-c", "echo ran >>" + filepath.Join(root, name) + "; exit " + status}, Testless: true}
}

func TestRun_aCellThatHasPassed_isNotRunAgainAtThisCommit(t *testing.T) {
	cases := map[string]struct {
		status, first, second string
		wantRuns              int
	}{
		"it passed":                      {"0", "abc", "abc", 1},
		"it failed":                      {"1", "abc", "abc", 2},
		"another commit":                 {"0", "abc", "def", 2},
		"changes that are not committed": {"0", "abc-dirty", "abc-dirty", 2},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			r := Runner{Root: root, Directory: root, Out: t.Output(), Now: func() time.Time { return time.Unix(0, 0) }}
			cell := noting(root, "cell", c.status)
			for _, r.Commit = range []string{c.first, c.second} {
				result, err := r.run(t.Context(), cell)
				if err != nil || result.Passed != (c.status == "0") || result.Date != "1970-01-01" {
					t.Fatalf("%+v, %v", result, err)
				}
			}
			if ran, err := os.ReadFile(filepath.Join(root, "cell")); err != nil || strings.Count(string(ran), "ran") != c.wantRuns {
				t.Errorf("ran %q (%v), want %d times", ran, err, c.wantRuns)
			}
		})
	}
}

func TestRun_aKernelThatLeavesNoReport_isNoPass(t *testing.T) {
	root := t.TempDir()
	cell := noting(root, "cell", "0")
	cell.Kernel = "6.1"
	r := Runner{Root: root, Directory: root, Out: t.Output(), Now: time.Now}
	if result, err := r.run(t.Context(), cell); err == nil {
		t.Errorf("%+v", result)
	}
}

func TestRun_tests_areCounted(t *testing.T) {
	const reports = `{"release": "6.1", "package": "6.1.1", "backends": [{"backend": "any", "passed": 3, "failed": 0, "skipped": 1}, {"backend": "nftables", "passed": 4}]}`
	cases := map[string]struct {
		said, kernel string
		testless     bool
		wantTests    int
		wantPassed   bool
	}{
		"tests of go test, without their parts":       {said: "--- PASS: TestA (0.00s)\n    --- PASS: TestA/b (0.00s)\n--- SKIP: TestB (0.00s)\n--- PASS: TestC (1.00s)\nPASS", wantTests: 2, wantPassed: true},
		"tests that a script has counted":             {said: "ok  \tx\t1s\n      123 tests passed\nok  \ty\t1s\n      4 tests passed", wantTests: 127, wantPassed: true},
		"tests of a kernel, as its report says":       {said: "--- PASS: TestA (0.00s)", kernel: "6.1", wantTests: 7, wantPassed: true},
		"a pattern that matches nothing":              {said: "testing: warning: no tests to run\nPASS"},
		"scripts that have counted none":              {said: "      0 tests passed"},
		"a cell that is not made of tests, with none": {said: "done", testless: true, wantPassed: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			said := "printf '%s\\n' '" + c.said + "'; mkdir -p build/kernels; echo '" + reports + "' >build/kernels/6.1.json"
			r := Runner{Root: root, Directory: root, Out: t.Output(), Now: time.Now, Commit: "abc"}
			result, err := r.run(t.Context(), Cell{Name: "cell", Command: []string{"sh", "-c", said}, Kernel: c.kernel, Testless: c.testless})
			if err != nil || result.Tests != c.wantTests || result.Passed != c.wantPassed || (result.Report != nil) != (c.kernel != "") {
				t.Errorf("%+v, %v", result, err)
			}
		})
	}
}

func TestKeep_aCellsResult_replacesItsEarlierOne(t *testing.T) {
	root := t.TempDir()
	old := `[{"cell": "b", "shows": "a note", "passed": true, "date": "2026-11-26", "commit": "abc", "seconds": 4}]`
	if err := errors.Join(os.MkdirAll(filepath.Join(root, "hack/matrix"), 0o700), os.WriteFile(resultsFile(root), []byte(old), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, r := range []Result{{Cell: "a"}, {Cell: "a", Passed: true, Tests: 7}} {
		if err := keep(root, r); err != nil {
			t.Fatal(err)
		}
	}
	got, err := kept(root)
	want := []Result{{Cell: "a", Passed: true, Tests: 7}, {Cell: "b", Passed: true, Date: "2026-11-26", Commit: "abc", Seconds: 4}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
}

// The page is the same behind the commit that has it, so that a check of generated files passes.
func TestStart_table_isTheSameBehindItsCommit(t *testing.T) {
	r := newRepository(t)
	page := filepath.Join(r.root, "docs/reference/runs.md")
	first := r.git("rev-parse", "--short=10", "HEAD")
	r.write(map[string]string{
		"docs/reference/runs.md": begin + end, "go.sum": "",
		"hack/matrix/results.json": `[{"cell": "fresh-cold", "passed": true, "date": "2026-11-26", "commit": "` + first + `", "seconds": 4, "tests": 9}]`,
	})
	var pages []string
	for _, tag := range []string{"second", "third"} {
		if err := start(t.Context(), []string{"table", r.root}, t.Output()); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, string(text))
		r.write(map[string]string{"other": tag})
		r.commit(tag)
	}
	if row := "passed, stale | 9 | 4 s | 2026-11-26, " + first + " |"; !strings.Contains(pages[0], row) || pages[0] != pages[1] {
		t.Errorf("want %q in\n%s\nand then the same:\n%s", row, pages[0], pages[1])
	}
}

func TestStart_run_saysWhatItCannotRun(t *testing.T) {
	r := newRepository(t)
	t.Setenv("SINCE", "v0.0.0")
	for words, want := range map[string]string{"nothing": "no cell \"nothing\": there are all, stale, touched, mutate", "touched": "v0.0.0"} {
		if err := start(t.Context(), []string{"run", r.root, words}, t.Output()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", words, err, want)
		}
	}
	if err := start(t.Context(), []string{"table"}, t.Output()); err == nil || !strings.HasPrefix(err.Error(), "usage: ") {
		t.Errorf("error %v", err)
	}
}
