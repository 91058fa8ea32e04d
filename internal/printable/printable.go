// Package printable makes text safe to show to people: much of what the commands print was written by pods' owners.
package printable

import (
	"strings"
	"unicode"
)

// Line returns text without anything that a terminal obeys, or that changes the order in which text is read. White space becomes a space,
// so the text is one line; any other character that is not printable becomes a question mark.
func Line(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return '?'
		}
		return r
	}, text)
}

// Lines is Line for each line of a text.
func Lines(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = Line(lines[i])
	}
	return strings.Join(lines, "\n")
}
