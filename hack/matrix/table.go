package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"istio-pod-network-controller/hack/kernels/report"
)

const (
	begin = "<!-- The tables are made from hack/matrix/results.json by `make generate`. -->\n"
	end   = "<!-- End of the tables. -->\n"
)

// document writes the tables into a page, between its marks.
func document(page string, list []Cell, results []Result, stale func(Cell, Result) (bool, error)) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rest, found := bytes.Cut(text, []byte(begin))
	_, after, closed := bytes.Cut(rest, []byte(end))
	if !found || !closed {
		return fmt.Errorf("%s: the marks %q and %q are missing", page, begin, end)
	}
	var rows []row
	for _, c := range list {
		r := row{Cell: c}
		if i := slices.IndexFunc(results, func(r Result) bool { return r.Cell == c.Name }); i >= 0 {
			r.Result = &results[i]
			if r.stale, err = stale(c, results[i]); err != nil {
				return fmt.Errorf("compare the inputs of %s: %w", c.Name, err)
			}
		}
		rows = append(rows, r)
	}
	made := slices.Concat(before, []byte(begin+"\n"+tables(rows)+"\n"+end), after)
	return os.WriteFile(page, made, 0o644)
}

// row is a cell and its last result, nil if it has none. It is stale if inputs have changed since.
type row struct {
	Cell
	*Result
	stale bool
}

func (r row) when() string { return r.Date + ", " + r.Commit }

// tables has a table of kernels and one of the other cells.
func tables(rows []row) string {
	var kernels, notes, others strings.Builder
	parts := map[string][]row{}
	for _, r := range rows {
		switch {
		case r.Kernel != "":
			parts[r.Kernel] = append(parts[r.Kernel], r)
		case r.Result == nil:
			fmt.Fprintf(&others, "| `%s` | %s | not run yet | | | |\n", r.Name, r.Shows)
		default:
			fmt.Fprintf(&others, "| `%s` | %s | %s | %s | %s | %s |\n", r.Name, r.Shows, r.became(), r.tests(), took(r.Seconds), r.when())
		}
	}
	for _, r := range rows {
		if own := parts[r.Kernel]; len(own) > 0 && own[0].Name == r.Name {
			kernelRow(&kernels, &notes, r.Kernel, own)
		}
	}
	return "| Kernel, with cgroup v2 alone | nftables | iptables-nft | iptables-legacy | Other tests | When, and at which commit |\n|---|---|---|---|---|---|\n" +
		kernels.String() + "\n" + notes.String() +
		"\nA cell is stale if files that can change its result have changed since.\n" +
		"\n| Cell | What | Result | Tests | Time | When, and at which commit |\n|---|---|---|---|---|---|\n" + others.String()
}

// kernelRow writes the row of a kernel from the results of its parts, and for below the table what was not run, skipped or failed.
func kernelRow(rows, notes *strings.Builder, kernel string, parts []row) {
	var whole report.Report
	var when, stale, missing []string
	reasons := map[string]int{}
	for _, r := range parts {
		if r.Result == nil {
			missing = append(missing, r.Name)
			continue
		}
		if !slices.Contains(when, r.when()) {
			when = append(when, r.when())
		}
		if r.stale {
			stale = append(stale, r.Name)
		}
		if r.Report == nil {
			fmt.Fprintf(notes, "- Linux %s fails `%s` before its tests have ended.\n", kernel, r.Name)
			continue
		}
		whole.Release, whole.Package = r.Report.Release, r.Report.Package
		whole.Backends = append(whole.Backends, r.Report.Backends...)
		for _, skip := range r.Report.Skipped {
			reasons[skip.Reason]++
		}
		for _, test := range r.Report.Failed {
			fmt.Fprintf(notes, "- Linux %s fails `%s`.\n", kernel, test)
		}
	}
	if whole.Release != "" {
		fmt.Fprintf(rows, "| %s (Debian's %s)", whole.Release, whole.Package)
		for _, backend := range []string{"nftables", "iptables-nft", "iptables-legacy", "any"} {
			fmt.Fprintf(rows, " | %s", counted(whole.Backends, backend))
		}
		fmt.Fprintf(rows, " | %s |\n", strings.Join(when, "; "))
	}
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		fmt.Fprintf(notes, "- Linux %s skips %d: %s.\n", kernel, reasons[reason], reason)
	}
	if len(stale) > 0 {
		fmt.Fprintf(notes, "- Stale: `%s`.\n", strings.Join(stale, "`, `"))
	}
	if len(missing) > 0 {
		fmt.Fprintf(notes, "- Not run yet: `%s`.\n", strings.Join(missing, "`, `"))
	}
}

// counted adds up the numbers of one backend.
func counted(counts []report.Count, backend string) string {
	var sum report.Count
	for _, c := range counts {
		if c.Backend == backend {
			sum.Passed, sum.Failed, sum.Skipped = sum.Passed+c.Passed, sum.Failed+c.Failed, sum.Skipped+c.Skipped
		}
	}
	if sum == (report.Count{}) {
		return "not run"
	}
	text := fmt.Sprintf("%d passed", sum.Passed)
	if sum.Failed > 0 {
		text += fmt.Sprintf(", %d failed", sum.Failed)
	}
	if sum.Skipped > 0 {
		text += fmt.Sprintf(", %d skipped", sum.Skipped)
	}
	return text
}

func (r row) became() string {
	text := "passed"
	if !r.Passed {
		text = "failed"
	}
	if r.stale {
		text += ", stale"
	}
	return text
}

// tests is empty if the tests were not counted, or the cell is not made of tests.
func (r row) tests() string {
	if r.Tests == 0 {
		return ""
	}
	return fmt.Sprint(r.Tests)
}

func took(seconds int) string {
	if seconds < 120 {
		return fmt.Sprintf("%d s", seconds)
	}
	return fmt.Sprintf("%d min", (seconds+30)/60)
}
