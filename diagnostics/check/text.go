package check

import (
	"fmt"
	"slices"
	"strings"

	"istio-pod-network-controller/internal/printable"
)

// Text is the results for people, by section: the reason, what to do, and where to read on.
func Text(results []Result) string {
	var b strings.Builder
	counts, section := map[Level]int{}, ""
	for _, r := range results {
		counts[r.Level]++
		if r.Section != section {
			if section != "" {
				b.WriteString("\n")
			}
			section = r.Section
			fmt.Fprintf(&b, "%s\n", section)
		}
		fmt.Fprintf(&b, "  %-4s  %s: %s\n", r.Level, r.Check, printable.Line(r.Message))
		if r.Level != OK {
			fmt.Fprintf(&b, "          do:  %s\n          see: %s\n", printable.Line(r.Do), r.Doc)
		}
	}
	fmt.Fprintf(&b, "\n%d ok, %d warn, %d fail\n", counts[OK], counts[Warn], counts[Fail])
	return b.String()
}

// maxNamed bounds how many names one line has.
const maxNamed = 5

// some names the first few of a list.
func some(names []string) string {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	if len(names) <= maxNamed {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), len(names)-maxNamed)
}

// listed returns the texts of the things that meet a condition.
func listed[T any](all []T, which func(T) bool, text func(T) string) (out []string) {
	for _, one := range all {
		if which(one) {
			out = append(out, text(one))
		}
	}
	return out
}

// names returns the names of the things that meet a condition.
func names[T fmt.Stringer](all []T, which func(T) bool) []string { return listed(all, which, T.String) }

// maxMessage bounds a line: messages repeat what pods' owners wrote.
const maxMessage = 2000
