package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
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
	Ratio     float64 `json:"ratio"`
}

func newRow(name, unit string, ours, reference float64, target string) row {
	r := row{Name: name, Unit: unit, Ours: ours, Reference: reference, Target: target}
	if reference != 0 {
		r.Ratio = ours / reference
	}
	return r
}

// inRounds compares what was measured in turn. The ratio is the median of the rounds' ratios: what slows the machine down for a while slows
// both figures of a round.
func inRounds(name, unit string, ours, reference []float64) row {
	ratios := make([]float64, len(ours))
	for i := range ours {
		ratios[i] = ours[i] / reference[i]
	}
	r := newRow(name, unit, median(ours), median(reference), "reported")
	r.Ratio = median(ratios)
	return r
}

// write prints rows, and puts them behind those that the file, if it has a name, holds of other measurements.
func write(rows []row, file string) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "NAME\tUNIT\tOURS\tREFERENCE\tRATIO\tTARGET")
	for _, r := range rows {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%.3g\t%.3g\t%.3f\t%s\n", r.Name, r.Unit, r.Ours, r.Reference, r.Ratio, r.Target)
	}
	if err := w.Flush(); err != nil || file == "" {
		return err
	}
	var all []row
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, &all)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read rows of %s: %w", file, err)
	}
	all = slices.DeleteFunc(all, func(old row) bool {
		return slices.ContainsFunc(rows, func(r row) bool { return r.Name == old.Name && r.Unit == old.Unit })
	})
	if data, err = json.MarshalIndent(append(all, rows...), "", "  "); err != nil {
		return fmt.Errorf("write rows: %w", err)
	}
	return os.WriteFile(file, append(data, '\n'), 0o600)
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
