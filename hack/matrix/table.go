package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
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
	var kernels, others, notes strings.Builder
	for _, c := range cells() {
		i := slices.IndexFunc(results, func(r Result) bool { return r.Cell == c.Name })
		switch {
		case i < 0:
			continue
		case results[i].Report != nil:
			kernelRow(&kernels, &notes, results[i])
		default:
			r := results[i]
			fmt.Fprintf(&others, "| `%s` | %s | %s | %s, %s |\n", r.Cell, r.Shows, passed(r), r.Date, r.Commit)
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

// kernelRow writes the row of a kernel, and below the table what was skipped or failed.
func kernelRow(rows, notes *strings.Builder, r Result) {
	fmt.Fprintf(rows, "| %s (Debian's %s)", r.Report.Release, r.Report.Package)
	for _, backend := range []string{"nftables", "iptables-nft", "iptables-legacy", "any"} {
		fmt.Fprintf(rows, " | %s", counted(r.Report.Backends, backend))
	}
	fmt.Fprintf(rows, " | %s, %s |\n", r.Date, r.Commit)
	reasons := map[string]int{}
	for _, skip := range r.Report.Skipped {
		reasons[skip.Reason]++
	}
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		fmt.Fprintf(notes, "- Linux %s skips %d: %s.\n", r.Report.Release, reasons[reason], reason)
	}
	for _, test := range r.Report.Failed {
		fmt.Fprintf(notes, "- Linux %s fails `%s`.\n", r.Report.Release, test)
	}
}

func counted(counts []Count, backend string) string {
	i := slices.IndexFunc(counts, func(c Count) bool { return c.Backend == backend })
	if i < 0 {
		return "not run"
	}
	text := fmt.Sprintf("%d passed", counts[i].Passed)
	if counts[i].Failed > 0 {
		text += fmt.Sprintf(", %d failed", counts[i].Failed)
	}
	if counts[i].Skipped > 0 {
		text += fmt.Sprintf(", %d skipped", counts[i].Skipped)
	}
	return text
}

func passed(r Result) string {
	if r.Passed {
		return "passed"
	}
	return "failed"
}
