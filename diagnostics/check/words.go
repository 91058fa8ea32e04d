package check

import (
	"fmt"
	"slices"
	"strings"
)

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

// count is a number with its noun, whose plural ends in s.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// maxMessage bounds a line: messages repeat what pods' owners wrote.
const maxMessage = 2000

func short(message string) string {
	if len(message) <= maxMessage {
		return message
	}
	return strings.ToValidUTF8(message[:maxMessage], "") + "..."
}
