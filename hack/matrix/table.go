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
func document(page string, results []Result) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rest, found := bytes.Cut(text, []byte(begin))
	_, after, closed := bytes.Cut(rest, []byte(end))
	if !found || !closed {
		return fmt.Errorf("%s: the marks %q and %q are missing", page, begin, end)
	}
	made := slices.Concat(before, []byte(begin+"\n"+tables(results)+"\n"+end), after)
	return os.WriteFile(page, made, 0o644)
}

// tables has a table of kernels and one of the other cells, in the order of the list of cells.
func tables(results []Result) string {
	var kernels, others strings.Builder
	parts := map[string][]Result{}
	for _, c := range cells() {
		i := slices.IndexFunc(results, func(r Result) bool { return r.Cell == c.Name })
		switch {
		case i < 0:
		case c.Kernel != "":
			parts[c.Kernel] = append(parts[c.Kernel], results[i])
		default:
			r := results[i]
			fmt.Fprintf(&others, "| `%s` | %s | %s | %s, %s |\n", r.Cell, r.Shows, passed(r), r.Date, r.Commit)
		}
	}
	var notes strings.Builder
	for _, kernel := range []string{"5.10", "6.1", "6.12"} {
		if len(parts[kernel]) > 0 {
			kernelRow(&kernels, &notes, kernel, parts[kernel])
		}
	}
	var text strings.Builder
	if kernels.Len() > 0 {
		text.WriteString("| Kernel, with cgroup v2 alone | nftables | iptables-nft | iptables-legacy | Other tests | When, and at which commit |\n|---|---|---|---|---|---|\n")
		text.WriteString(kernels.String() + "\n" + notes.String())
	}
	if others.Len() > 0 {
		if text.Len() > 0 {
			text.WriteString("\n")
		}
		text.WriteString("| Cell | What | Result | When, and at which commit |\n|---|---|---|---|\n" + others.String())
	}
	return text.String()
}

// kernelRow writes the row of a kernel from the results of its parts, and for below the table what was not run, skipped or failed.
func kernelRow(rows, notes *strings.Builder, kernel string, parts []Result) {
	var whole report.Report
	var when []string
	reasons := map[string]int{}
	for _, r := range parts {
		if at := r.Date + ", " + r.Commit; !slices.Contains(when, at) {
			when = append(when, at)
		}
		if r.Report == nil {
			fmt.Fprintf(notes, "- Linux %s fails `%s` before its tests have ended.\n", kernel, r.Cell)
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
	fmt.Fprintf(rows, "| %s (Debian's %s)", whole.Release, whole.Package)
	for _, backend := range []string{"nftables", "iptables-nft", "iptables-legacy", "any"} {
		fmt.Fprintf(rows, " | %s", counted(whole.Backends, backend))
	}
	fmt.Fprintf(rows, " | %s |\n", strings.Join(when, "; "))
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		fmt.Fprintf(notes, "- Linux %s skips %d: %s.\n", kernel, reasons[reason], reason)
	}
	for _, c := range cells() {
		if c.Kernel == kernel && !slices.ContainsFunc(parts, func(r Result) bool { return r.Cell == c.Name }) {
			fmt.Fprintf(notes, "- Not run yet: %s.\n", c.Shows)
		}
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

func passed(r Result) string {
	if r.Passed {
		return "passed"
	}
	return "failed"
}
