package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"istio-pod-network-controller/hack/kernels/report"
)

func TestChoose_words_nameCells(t *testing.T) {
	list := []Cell{{Name: "kernel-6.1-a", Quick: true}, {Name: "kernel-6.1-b"}, {Name: "kernel-6.12-a", Quick: true}, {Name: "e2e-nri"}}
	for words, want := range map[string]string{
		"quick":                "kernel-6.1-a kernel-6.12-a",
		"all":                  "kernel-6.1-a kernel-6.1-b kernel-6.12-a e2e-nri",
		"kernel":               "kernel-6.1-a kernel-6.1-b kernel-6.12-a",
		"kernel-6.1":           "kernel-6.1-a kernel-6.1-b",
		"kernel-6.1-b e2e-nri": "kernel-6.1-b e2e-nri",
		"e2e all":              "e2e-nri kernel-6.1-a kernel-6.1-b kernel-6.12-a",
		"kernel nothing":       "error",
	} {
		t.Run(words, func(t *testing.T) {
			chosen, err := choose(list, words)
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

func TestEveryCellHasANameOfItsOwn(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range cells() {
		if seen[c.Name] || c.Shows == "" {
			t.Errorf("%+v", c)
		}
		seen[c.Name] = true
	}
}

func TestParts_togetherHaveEveryPackageWithKernelTests(t *testing.T) {
	root := os.DirFS("../..")
	var all []string
	for _, p := range parts() {
		all = append(all, strings.Fields(p.packages)...)
	}
	err := fs.WalkDir(root, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			if _, module := fs.Stat(root, path+"/go.mod"); module == nil && path != "." {
				return fs.SkipDir
			}
			return err
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := fs.ReadFile(root, path)
		if err != nil || !strings.Contains(string(text), `/test/kerneltest"`) {
			return err
		}
		directory := "./" + filepath.Dir(path)
		if !slices.ContainsFunc(all, func(pattern string) bool {
			prefix, tree := strings.CutSuffix(pattern, "...")
			return pattern == directory || tree && strings.HasPrefix(directory+"/", prefix)
		}) {
			t.Errorf("no part has %s", directory)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A cell notes in a file that it ran.
func noting(root, name, status string) Cell {
	return Cell{Name: name, Shows: "a note", Command: []string{"sh", "-c", "echo ran >>" + filepath.Join(root, name) + "; exit " + status}}
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

func TestDocument_hasARowForEachResult(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(page, []byte("before\n"+begin+"old\n"+end+"after\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := document(page, []Result{
		{Cell: "containerd-2.2.9", Shows: "refusals", Passed: true, Date: "2026-11-26", Commit: "abc"},
		{Cell: "kernel-5.10-nftables", Date: "2026-11-25", Commit: "abc", Passed: true, Report: &report.Report{
			Release: "5.10.0-32-amd64", Package: "5.10.223-1", Backends: []report.Count{{Backend: "any", Passed: 5, Failed: 0, Skipped: 1}, {Backend: "nftables", Passed: 7, Failed: 0, Skipped: 0}},
			Skipped: []report.Skip{{Test: "a.TestA", Reason: "no cookie"}},
		}},
		{Cell: "kernel-5.10-backends", Date: "2026-11-26", Commit: "def", Report: &report.Report{
			Release: "5.10.0-32-amd64", Package: "5.10.223-1", Backends: []report.Count{{Backend: "nftables", Passed: 2, Failed: 1, Skipped: 0}}, Failed: []string{"b.TestB"},
		}},
		{Cell: "kernel-5.10-agent", Date: "2026-11-26", Commit: "def"},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := "before\n" + begin + `
| Kernel, with cgroup v2 alone | nftables | iptables-nft | iptables-legacy | Other tests | When, and at which commit |
|---|---|---|---|---|---|
| 5.10.0-32-amd64 (Debian's 5.10.223-1) | 9 passed, 1 failed | not run | not run | 5 passed, 1 skipped | 2026-11-25, abc; 2026-11-26, def |

- Linux 5.10 fails ` + "`b.TestB`" + `.
- Linux 5.10 fails ` + "`kernel-5.10-agent`" + ` before its tests have ended.
- Linux 5.10 skips 1: no cookie.
- Not run yet: the iptables backend and foreign rules on Linux 5.10.
- Not run yet: connections through the rules on Linux 5.10.

| Cell | What | Result | When, and at which commit |
|---|---|---|---|
| ` + "`containerd-2.2.9`" + ` | refusals | passed | 2026-11-26, abc |

` + end + "after\n"
	if got, err := os.ReadFile(page); err != nil || string(got) != want {
		t.Errorf("%v\n%s", err, got)
	}
}
