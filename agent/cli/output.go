package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"sigs.k8s.io/yaml"
)

// printJSON prints a value as indented JSON.
func printJSON(out io.Writer, v any) error {
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
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

// validateReport checks the flags of a command that prints text or JSON, and has a limited time.
func validateReport(output string, timeout time.Duration) error {
	var errs []error
	if output != outputText && output != outputJSON {
		errs = append(errs, fmt.Errorf("--output: value %q: want text or json", output))
	}
	if timeout <= 0 {
		errs = append(errs, fmt.Errorf("--timeout: value %q: want more than 0", timeout))
	}
	return errors.Join(errs...)
}
