package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"
	"text/tabwriter"
)

// row compares a figure of ours with a reference taken in the same run. A reference of 0 has no ratio.
type row struct {
	Name      string  `json:"name"`
	Unit      string  `json:"unit"`
	Ours      float64 `json:"ours"`
	Reference float64 `json:"reference"`
	Target    string  `json:"target"`
}

func (r row) ratio() float64 {
	if r.Reference == 0 {
		return 0
	}
	return r.Ours / r.Reference
}

// MarshalJSON adds the ratio.
func (r row) MarshalJSON() ([]byte, error) {
	type plain row
	return json.Marshal(struct {
		plain
		Ratio float64 `json:"ratio"`
	}{plain(r), r.ratio()})
}

func write(rows []row, file string) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "NAME\tUNIT\tOURS\tREFERENCE\tRATIO\tTARGET")
	for _, r := range rows {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%.3g\t%.3g\t%.3f\t%s\n", r.Name, r.Unit, r.Ours, r.Reference, r.ratio(), r.Target)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if file == "" {
		return nil
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	enc := json.NewEncoder(f)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return errors.Join(enc.Encode(rows), f.Close())
}

// childFaults counts the page faults of the child processes that this one has waited for: a process that starts another
// program cannot do without any.
func childFaults() (float64, error) {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &usage); err != nil {
		return 0, fmt.Errorf("count processes: %w", err)
	}
	return float64(usage.Minflt + usage.Majflt), nil
}
