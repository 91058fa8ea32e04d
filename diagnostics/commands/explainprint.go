package commands

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"istio-pod-network-controller/internal/cmdline"
	"istio-pod-network-controller/internal/printable"
)

// explanations is what machines read. Field names are stable.
type explanations struct {
	Objects     []explained  `json:"objects"`
	NotLookedAt []passedOver `json:"notLookedAt,omitempty"`
}

func (all explanations) print(w io.Writer) error {
	for i, e := range all.Objects {
		if i > 0 {
			if _, err := fmt.Fprintln(w); err != nil {
				return err
			}
		}
		if err := e.print(w); err != nil {
			return err
		}
	}
	for i, p := range all.NotLookedAt {
		line := fmt.Sprintf("%s %s/%s: not looked at: what makes pods of its %s is not known here\n", p.Kind, cmp.Or(p.Namespace, "-"), p.Name, p.At)
		if i == 0 && len(all.Objects) > 0 {
			line = "\n" + line
		}
		if _, err := io.WriteString(w, printable.Lines(line)); err != nil {
			return err
		}
	}
	return nil
}

func (e explained) print(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s/%s: ", e.Kind, e.Namespace, e.Name)
	switch {
	case e.Error != "":
		fmt.Fprintf(&b, "invalid\n  %s\n", strings.ReplaceAll(e.Error, "\n", "\n  "))
	case e.Redirected:
		fmt.Fprintf(&b, "redirected\n  asked for by: %s\n", e.AskedBy)
	default:
		fmt.Fprintf(&b, "not redirected\n  %s\n", e.Reason)
	}
	for _, line := range e.Summary {
		fmt.Fprintf(&b, "  %s\n", line)
	}
	for _, warning := range e.Warnings {
		fmt.Fprintf(&b, "  warning: %s\n", warning)
	}
	for _, note := range e.Notes {
		fmt.Fprintf(&b, "  note: %s\n", note)
	}
	e.Proxy.print(&b)
	if len(e.Settings) > 0 {
		b.WriteByte('\n')
		if err := printSettings(&b, e); err != nil {
			return err
		}
		b.WriteByte('\n')
	}
	if err := cmdline.PrintLines(&b, e.Rules, false); err != nil {
		return err
	}
	_, err := io.WriteString(w, printable.Lines(b.String()))
	return err
}

func printSettings(w io.Writer, e explained) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "SETTING\tVALUE\tFROM") // an error comes again with Flush
	for _, s := range e.Settings {
		value := s.Value
		if value == "" {
			value = "none"
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\n", s.Name, value, s.Source)
	}
	return table.Flush()
}
