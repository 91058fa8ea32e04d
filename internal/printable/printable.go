// Package printable makes text safe to show to people: much of what the commands print was written by pods' owners.
package printable

import (
	"strconv"
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

// Short returns the first most bytes of a longer text, and dots.
func Short(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "..."
}

// Count returns a number with its noun.
func Count(n int, noun string) string {
	stem, isY := strings.CutSuffix(noun, "y")
	switch {
	case n == 1:
	case isY:
		noun = stem + "ies"
	default:
		noun += "s"
	}
	return strconv.Itoa(n) + " " + noun
}

// Clip returns at most the first most bytes of a text.
func Clip(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "")
}

// Joined joins two messages, each of which may be "".
func Joined(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}

// maxWords is how many bytes Words shows.
const maxWords = 1 << 10

// Words returns a program's words in one line: their end, if there are many.
func Words(text string) string {
	text = strings.TrimSpace(Line(strings.ToValidUTF8(text, "?")))
	if len(text) > maxWords {
		text = "..." + strings.ToValidUTF8(text[len(text)-maxWords:], "")
	}
	return text
}
