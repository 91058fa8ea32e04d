package connectivity

import (
	"fmt"
	"slices"
	"strings"

	"istio-pod-network-controller/internal/printable"
)

// Proven reports whether there are proofs and all of them hold.
func Proven(lines []Line) bool {
	return len(lines) > 0 && !slices.ContainsFunc(lines, func(l Line) bool { return !l.OK })
}

// Text is the lines for people: what is proven, why not, what to do.
func Text(lines []Line) string {
	var b strings.Builder
	width, failed := 0, 0
	for _, l := range lines {
		width = max(width, len(l.Node))
	}
	for _, l := range lines {
		state, family := "ok  ", ""
		if !l.OK {
			state = "FAIL"
			failed++
		}
		if l.Family != "" {
			family = l.Family + ": "
		}
		fmt.Fprintf(&b, "%s  %-*s  %s%s\n", state, width, l.Node, family, l.What)
		if !l.OK {
			fmt.Fprintf(&b, "        why: %s\n        do:  %s\n", printable.Line(l.Why), l.Do)
		}
	}
	fmt.Fprintf(&b, "%d proofs, %d failed\n", len(lines), failed)
	return b.String()
}
