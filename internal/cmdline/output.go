package cmdline

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"istio-pod-network-controller/iptables"
)

// The values of --output that several commands have.
const (
	OutputWords = "words"
	OutputText  = "text"
	OutputJSON  = "json"
	OutputYAML  = "yaml"
	OutputWide  = "wide"
)

// PrintJSON prints a value as indented JSON.
func PrintJSON(out io.Writer, v any) error {
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// PrintAs prints a value as JSON or YAML, and in other formats by people.
func PrintAs(out io.Writer, format string, v any, people func(io.Writer) error) error {
	switch format {
	case OutputJSON:
		return PrintJSON(out, v)
	case OutputYAML:
		text, err := yaml.Marshal(v)
		if err != nil {
			return err
		}
		return Writes(string(text))(out)
	}
	return people(out)
}

// Writes returns a writer of a text, for PrintAs.
func Writes(text string) func(io.Writer) error {
	return func(out io.Writer) error {
		_, err := io.WriteString(out, text)
		return err
	}
}

// OneOf returns an error for a flag's value that is none of the known ones.
func OneOf(flag, value string, known ...string) error {
	last := len(known) - 1
	if slices.Contains(known, value) {
		return nil
	}
	return fmt.Errorf("--%s: value %q: want %s or %s", flag, value, strings.Join(known[:last], ", "), known[last])
}

// ValidTimeout returns an error for a time limit that leaves no time.
func ValidTimeout(timeout time.Duration) error {
	if timeout <= 0 {
		return fmt.Errorf("--timeout: value %q: want more than 0", timeout)
	}
	return nil
}

// ValidName returns an error for a flag's value in which faults finds some, such as a function of apimachinery's validation. Empty is valid.
func ValidName(flag, value string, faults func(string) []string) error {
	if found := faults(value); value != "" && len(found) > 0 {
		return fmt.Errorf("--%s: value %q: %s", flag, value, strings.Join(found, "; "))
	}
	return nil
}

// PrintLines prints rules in words, chain by chain. With counters, each line begins with what the kernel has counted.
func PrintLines(w io.Writer, lines []iptables.Line, counters bool) error {
	var b strings.Builder
	chain := ""
	for i, l := range lines {
		if i == 0 || l.Chain != chain {
			chain = l.Chain
			fmt.Fprintln(&b, strings.TrimSuffix(chain+": "+iptables.ChainTitle(chain), ": "))
			if counters {
				fmt.Fprintf(&b, "%10s %12s\n", "packets", "bytes")
			}
		}
		if counters {
			packets, bytes := l.Counted()
			fmt.Fprintf(&b, "%10s %12s", packets, bytes)
		}
		fmt.Fprintf(&b, "  %s\n", l)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
