package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// printJSON prints a value as indented JSON.
func printJSON(out io.Writer, v any) error {
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// printYAML prints a value as YAML.
func printYAML(out io.Writer, v any) error {
	text, err := yaml.Marshal(v)
	if err == nil {
		_, err = out.Write(text)
	}
	return err
}

// printAs prints a value as JSON or YAML, and in other formats what people writes.
func printAs(out io.Writer, format string, v any, people func(io.Writer) error) error {
	switch format {
	case outputJSON:
		return printJSON(out, v)
	case outputYAML:
		return printYAML(out, v)
	}
	return people(out)
}

// writes returns a function that writes a text.
func writes(text string) func(io.Writer) error {
	return func(out io.Writer) error {
		_, err := io.WriteString(out, text)
		return err
	}
}

// oneOf returns an error for a flag's value that is none of the known ones.
func oneOf(flag, value string, known ...string) error {
	last := len(known) - 1
	if slices.Contains(known, value) {
		return nil
	}
	return fmt.Errorf("--%s: value %q: want %s or %s", flag, value, strings.Join(known[:last], ", "), known[last])
}

// validateReport checks the flags of a command that prints text or JSON, and has a limited time.
func validateReport(output string, timeout time.Duration) error {
	err := oneOf("output", output, outputText, outputJSON)
	if timeout <= 0 {
		err = errors.Join(err, fmt.Errorf("--timeout: value %q: want more than 0", timeout))
	}
	return err
}
