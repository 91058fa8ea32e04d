// Command chartdocs writes the table of a chart's README from the comments of its values.yaml.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	begin = "<!-- The table is made from values.yaml by `make generate`. -->\n"
	end   = "<!-- End of the table. -->\n"

	// group begins the comment of a mapping whose values have comments of their own.
	group = "## "

	// sources is the line of a comment from which on it is for those who change the value, and not for the table.
	sources = "\n# Sources:"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: chartdocs CHART")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "chartdocs:", err)
		os.Exit(1)
	}
}

func write(chart string) error {
	values, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		return err
	}
	file := filepath.Join(chart, "README.md")
	readme, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	table, err := render(values)
	if err != nil {
		return fmt.Errorf("values.yaml: %w", err)
	}
	before, rest, found := bytes.Cut(readme, []byte(begin))
	_, after, closed := bytes.Cut(rest, []byte(end))
	if !found || !closed {
		return fmt.Errorf("%s: the marks %q and %q are missing", file, begin, end)
	}
	text := string(before) + begin + "\n" + table + "\n" + end + string(after)
	return os.WriteFile(file, []byte(text), 0o644)
}

// render is the table: a row for each value that has a comment, nested ones by their path, and one for each group.
func render(values []byte) (string, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(values, &document); err != nil {
		return "", err
	}
	if len(document.Content) != 1 || document.Content[0].Kind != yaml.MappingNode {
		return "", errors.New("not one mapping")
	}
	rows := []string{"| Value | Type | Default | Meaning |", "|---|---|---|---|"}
	nested, err := rowsOf("", document.Content[0])
	return strings.Join(append(rows, nested...), "\n") + "\n", err
}

func rowsOf(prefix string, mapping *yaml.Node) ([]string, error) {
	var rows []string
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		name := prefix + key.Value
		about, isGroup := strings.CutPrefix(key.HeadComment, group)
		if value.Kind == yaml.MappingNode && (isGroup || key.HeadComment == "") {
			nested, err := rowsOf(name+".", value)
			if err != nil {
				return nil, err
			}
			if isGroup {
				rows = append(rows, fmt.Sprintf("| **%s** | | | %s |", name, about))
			}
			rows = append(rows, nested...)
			continue
		}
		comment, _, _ := strings.Cut(key.HeadComment, sources)
		meaning := strings.TrimSpace(strings.ReplaceAll(strings.TrimPrefix(comment, "#"), "\n#", ""))
		if meaning == "" {
			return nil, fmt.Errorf("%s (line %d) has no comment", name, key.Line)
		}
		var plain any
		if err := value.Decode(&plain); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		defaults, err := json.Marshal(plain)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		rows = append(rows, fmt.Sprintf("| `%s` | %s | `%s` | %s |", name, typeOf(plain), defaults, strings.ReplaceAll(meaning, "|", `\|`)))
	}
	return rows, nil
}

// typeOf names the type of a default as JSON schemas do.
func typeOf(value any) string {
	switch value.(type) {
	case bool:
		return "boolean"
	case string:
		return "string"
	case []any:
		return "array"
	case map[string]any:
		return "object"
	}
	return "number"
}
