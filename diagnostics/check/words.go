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

// maxMessage bounds a line: messages repeat what pods' owners wrote.
const maxMessage = 2000
