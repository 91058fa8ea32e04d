package commands

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/duration"

	"istio-pod-network-controller/internal/printable"
)

// The colours of cells, as ECMA-48 numbers; 0 means none.
const (
	red    = 31
	green  = 32
	yellow = 33
)

// cell is a word of a table.
type cell struct {
	text   string
	colour int
}

// plain returns cells without colours.
func plain(texts ...string) []cell {
	out := make([]cell, len(texts))
	for i, text := range texts {
		out[i].text = text
	}
	return out
}

// maxCell is the length of the longest name in a cluster.
const maxCell = 253

// writeTable writes rows with aligned columns. The last column has no padding. An empty cell is shown as "-".
func writeTable(w io.Writer, colour bool, rows [][]cell) error {
	var widths []int
	for _, row := range rows {
		for i := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cellText(row, i)))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		for i, c := range row {
			text := cellText(row, i)
			if c.colour != 0 && colour {
				fmt.Fprintf(&b, "\x1b[%dm%s\x1b[0m", c.colour, text)
			} else {
				b.WriteString(text)
			}
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text)+2))
			}
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// cellText returns what is shown of a cell. Only the last of a row may be longer than any name in a cluster.
func cellText(row []cell, i int) string {
	if i == len(row)-1 {
		return shown(row[i].text)
	}
	return short(shown(row[i].text), maxCell)
}

// shown returns text as one printable line, "-" if there is none.
func shown(text string) string {
	if text = strings.Join(strings.Fields(printable.Line(text)), " "); text == "" {
		return "-"
	}
	return text
}

// short returns the beginning of a text that is longer than n characters.
func short(text string, n int) string {
	if runes := []rune(text); len(runes) > n {
		return string(runes[:n-3]) + "..."
	}
	return text
}

// age returns how long ago something was, as kubectl shows it.
func age(since, now time.Time) string {
	if since.IsZero() {
		return ""
	}
	return duration.HumanDuration(max(0, now.Sub(since)))
}
