package commands

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"istio-pod-network-controller/internal/printable"
)

// maxCell is the length of the longest name in a cluster.
const maxCell = 253

// writeTable writes rows with aligned columns. Only the last cell of a row may be longer than any name in a cluster.
func writeTable(w io.Writer, rows [][]string) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, text := range row {
			if cells[i] = shown(text); i < len(row)-1 {
				cells[i] = printable.Short(cells[i], maxCell)
			}
		}
		_, _ = fmt.Fprintln(table, strings.Join(cells, "\t")) // an error comes again with Flush
	}
	return table.Flush()
}

// shown returns text as one printable line, "-" if there is none.
func shown(text string) string {
	if text = strings.Join(strings.Fields(printable.Line(text)), " "); text == "" {
		return "-"
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
