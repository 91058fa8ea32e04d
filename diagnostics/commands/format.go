package commands

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/util/jsonpath"

	"istio-pod-network-controller/internal/cmdline"
	"istio-pod-network-controller/internal/printable"
)

// The values of --output that take parts out of the document for machines, with kubectl's syntax.
const (
	outputPath    = "jsonpath="
	outputColumns = "custom-columns="
)

// column is one of custom-columns.
type column struct {
	head string
	path *jsonpath.JSONPath
}

// validOutput returns an error for a value of --output that a command does not have.
func validOutput(value string, known ...string) error {
	var err error
	switch {
	case strings.HasPrefix(value, outputPath):
		_, err = parsePath(value[len(outputPath):])
	case strings.HasPrefix(value, outputColumns):
		_, err = parseColumns(value[len(outputColumns):])
	default:
		return cmdline.OneOf("output", value, append(known, outputPath+"PATH", outputColumns+"HEAD:PATH,...")...)
	}
	if err != nil {
		return fmt.Errorf("--output: value %q: %w", value, err)
	}
	return nil
}

// printSelected prints a document as --output says: JSON, YAML, by a path, or a row for each of its rows. people writes other formats.
func printSelected(out io.Writer, output string, document, rows any, people func(io.Writer) error) error {
	switch {
	case strings.HasPrefix(output, outputPath):
		path, err := parsePath(output[len(outputPath):])
		if err != nil {
			return err
		}
		plain, err := asJSON(document)
		if err != nil {
			return err
		}
		return path.Execute(out, plain)
	case strings.HasPrefix(output, outputColumns):
		columns, err := parseColumns(output[len(outputColumns):])
		if err != nil {
			return err
		}
		return printColumns(out, columns, rows)
	}
	return cmdline.PrintAs(out, output, document, people)
}

// bare is a path without braces, which kubectl takes, too. @ and $ in braces are the whole document, and begin paths.
var bare = regexp.MustCompile(`^\{?\.?([^{}@$][^{}]*)\}?$`)

func parsePath(text string) (*jsonpath.JSONPath, error) {
	if found := bare.FindStringSubmatch(text); found != nil {
		text = "{." + found[1] + "}"
	}
	path := jsonpath.New("output").AllowMissingKeys(true)
	return path, path.Parse(text)
}

func parseColumns(text string) (out []column, err error) {
	for item := range strings.SplitSeq(text, ",") {
		head, expression, ok := strings.Cut(item, ":")
		if !ok || head == "" || expression == "" {
			return nil, errors.New("want HEAD:PATH, separated by commas, as in NAME:.name,STATE:.state")
		}
		path, err := parsePath(expression)
		if err != nil {
			return nil, err
		}
		out = append(out, column{head, path})
	}
	return out, nil
}

// printColumns prints a table with a row for each element of a list.
func printColumns(out io.Writer, columns []column, list any) error {
	plain, err := asJSON(list)
	if err != nil {
		return err
	}
	elements, _ := plain.([]any) // null is an empty list
	table := [][]string{make([]string, len(columns))}
	for i, c := range columns {
		table[0][i] = c.head
	}
	for _, element := range elements {
		var row []string
		for _, c := range columns {
			text, err := valueAt(c.path, element)
			if err != nil {
				return err
			}
			row = append(row, text)
		}
		table = append(table, row)
	}
	return writeTable(out, table, 0)
}

// valueAt returns what a path finds, as kubectl writes it.
func valueAt(path *jsonpath.JSONPath, in any) (string, error) {
	found, err := path.FindResults(in)
	if err != nil {
		return "", err
	}
	var words []string
	for _, set := range found {
		for _, value := range set {
			words = append(words, fmt.Sprint(value.Interface()))
		}
	}
	if len(words) == 0 {
		return "<none>", nil
	}
	return strings.Join(words, ","), nil
}

// asJSON returns a value as its JSON is decoded, so that paths have the names of JSON.
func asJSON(value any) (plain any, err error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	return plain, json.Unmarshal(text, &plain)
}

// maxCell is the length of the longest name in a cluster.
const maxCell = 253

// minMessage is the room that a row's last cell has beside it. With less, the cell is below its row, indented.
const (
	minMessage = 60
	indent     = 4
)

// writeTable writes rows with aligned columns. Only the last cell of a row may be longer than any name in a cluster: on a terminal of so many columns
// it has several lines. 0 is for what is no terminal, where a row is one line.
func writeTable(w io.Writer, rows [][]string, columns int) error {
	last := len(rows[0]) - 1
	widths, at := make([]int, last), 0
	for _, row := range rows {
		for i := range row {
			if row[i] = shown(row[i]); i < last {
				row[i] = printable.Short(row[i], maxCell)
				widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
			}
		}
	}
	for _, width := range widths {
		at += width + 2
	}
	var out strings.Builder
	for _, row := range rows {
		var b strings.Builder
		for i, width := range widths {
			fmt.Fprintf(&b, "%-*s  ", width, row[i])
		}
		switch {
		case columns == 0:
			b.WriteString(row[last])
		case columns-at >= minMessage:
			b.WriteString(strings.Join(wrapped(row[last], columns-at), "\n"+strings.Repeat(" ", at)))
		case row[last] != "-":
			below := "\n" + strings.Repeat(" ", indent)
			b.WriteString(below + strings.Join(wrapped(row[last], columns-indent), below))
		}
		out.WriteString(strings.TrimRight(b.String(), " ") + "\n")
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// wrapped returns lines of a text, of at most so many characters where no word is longer.
func wrapped(text string, most int) (lines []string) {
	for word := range strings.FieldsSeq(text) {
		if end := len(lines) - 1; end >= 0 && utf8.RuneCountInString(lines[end])+1+utf8.RuneCountInString(word) <= most {
			lines[end] += " " + word
			continue
		}
		lines = append(lines, word)
	}
	return lines
}

// columnsOf returns how wide a terminal is; 0 if it is none.
func columnsOf(out io.Writer) int {
	file, ok := out.(*os.File)
	if !ok {
		return 0
	}
	columns, _, err := term.GetSize(int(file.Fd()))
	if err != nil {
		return 0
	}
	return columns
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
