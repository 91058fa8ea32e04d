package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"istio-pod-network-controller/hack/kernels/report"
)

func TestDocument_eachCell_hasARowOrANote(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(page, []byte("before\n"+begin+"old\n"+end+"after\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	list := []Cell{
		{Name: "mutate", Shows: "mutations"}, {Name: "containerd-2.2.9", Shows: "refusals"}, {Name: "e2e-nri", Shows: "round nri"}, {Name: "e2e-cni", Shows: "round cni"},
	}
	for _, kernel := range []string{"5.10", "6.1"} {
		for _, part := range []string{"nftables", "iptables", "backends", "agent"} {
			list = append(list, Cell{Name: "kernel-" + kernel + "-" + part, Kernel: kernel})
		}
	}
	results := []Result{
		{Cell: "a-cell-that-is-gone", Passed: true},
		{Cell: "containerd-2.2.9", Passed: true, Date: "2026-11-26", Commit: "abc", Seconds: 119, Tests: 12},
		{Cell: "e2e-nri", Date: "2026-11-27", Commit: "old", Seconds: 1000, Tests: 3},
		{Cell: "kernel-5.10-nftables", Date: "2026-11-25", Commit: "old", Passed: true, Report: &report.Report{
			Release: "5.10.0-32-amd64", Package: "5.10.223-1", Backends: []report.Count{{Backend: "any", Passed: 5, Failed: 0, Skipped: 1}, {Backend: "nftables", Passed: 7, Failed: 0, Skipped: 0}},
			Skipped: []report.Skip{{Test: "a.TestA", Reason: "no cookie"}},
		}},
		{Cell: "kernel-5.10-backends", Date: "2026-11-26", Commit: "def", Report: &report.Report{
			Release: "5.10.0-32-amd64", Package: "5.10.223-1", Backends: []report.Count{{Backend: "nftables", Passed: 2, Failed: 2, Skipped: 0}},
			Failed: []string{"b.TestB", "b.TestC"},
		}},
		{Cell: "kernel-5.10-agent", Date: "2026-11-26", Commit: "def"},
		{Cell: "mutate", Passed: true, Date: "2026-11-26", Commit: "old", Seconds: 330},
	}
	stale := func(_ Cell, r Result) (bool, error) { return r.Commit == "old", nil }
	if err := document(page, list, results, stale); err != nil {
		t.Fatal(err)
	}
	want := "before\n" + begin + `
| Kernel, with cgroup v2 alone | nftables | iptables-nft | iptables-legacy | Other tests | When, and at which commit |
|---|---|---|---|---|---|
| 5.10.0-32-amd64 (Debian's 5.10.223-1) | 9 passed, 2 failed | not run | not run | 5 passed, 1 skipped | 2026-11-25, old; 2026-11-26, def |

- Linux 5.10 fails ` + "`b.TestB`" + `.
- Linux 5.10 fails ` + "`b.TestC`" + `.
- Linux 5.10 fails ` + "`kernel-5.10-agent`" + ` before its tests have ended.
- Linux 5.10 skips 1: no cookie.
- Stale: ` + "`kernel-5.10-nftables`" + `.
- Not run yet: ` + "`kernel-5.10-iptables`" + `.
- Not run yet: ` + "`kernel-6.1-nftables`, `kernel-6.1-iptables`, `kernel-6.1-backends`, `kernel-6.1-agent`" + `.

A cell is stale if files that can change its result have changed since.

| Cell | What | Result | Tests | Time | When, and at which commit |
|---|---|---|---|---|---|
| ` + "`mutate`" + ` | mutations | passed, stale |  | 6 min | 2026-11-26, old |
| ` + "`containerd-2.2.9`" + ` | refusals | passed | 12 | 119 s | 2026-11-26, abc |
| ` + "`e2e-nri`" + ` | round nri | failed, stale | 3 | 17 min | 2026-11-27, old |
| ` + "`e2e-cni`" + ` | round cni | not run yet | | | |

` + end + "after\n"
	if got, err := os.ReadFile(page); err != nil || string(got) != want {
		t.Errorf("%v\n%s", err, got)
	}
}

func TestDocument_historyUnknown_leavesThePage(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	text := begin + "old\n" + end
	if err := os.WriteFile(page, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	unknown := errors.New("no history")
	err := document(page, []Cell{{Name: "a"}}, []Result{{Cell: "a"}}, func(Cell, Result) (bool, error) { return false, unknown })
	if got, _ := os.ReadFile(page); !errors.Is(err, unknown) || string(got) != text {
		t.Errorf("%v\n%s", err, got)
	}
}
