package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"text/tabwriter"
)

// row is a line of build/bench.json: a figure, what it is compared with in the same run (0: with nothing), and the target.
type row struct {
	Name      string  `json:"name"`
	Unit      string  `json:"unit"`
	Ours      float64 `json:"ours"`
	Reference float64 `json:"reference"`
	Target    string  `json:"target"`
	Ratio     float64 `json:"ratio"`
	most      float64 // the ratio above which the run fails; 0: it does not
}

func newRow(name, unit string, ours, reference float64, target string) row {
	r := row{Name: name, Unit: unit, Ours: ours, Reference: reference, Target: target}
	if reference != 0 {
		r.Ratio = ours / reference
	}
	return r
}

// atMost has the run fail by a higher ratio.
func (r row) atMost(ratio float64) row {
	r.most, r.Target = ratio, fmt.Sprintf("%g times", ratio)
	return r
}

// missed returns an error that names the rows by which the run fails.
func missed(rows []row) error {
	var errs []error
	for _, r := range rows {
		if r.most > 0 && r.Ratio > r.most {
			errs = append(errs, fmt.Errorf("%s: %.3g times, want at most %g", r.Name, r.Ratio, r.most))
		}
	}
	return errors.Join(errs...)
}

// addRows puts rows behind those that the file holds of other measurements.
func addRows(file string, rows []row) error {
	var all []row
	data, err := os.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return fmt.Errorf("read rows: %w", err)
	default:
		if err := json.Unmarshal(data, &all); err != nil {
			return fmt.Errorf("read rows of %s: %w", file, err)
		}
	}
	all = slices.DeleteFunc(all, func(old row) bool {
		return slices.ContainsFunc(rows, func(r row) bool { return r.Name == old.Name })
	})
	if data, err = json.MarshalIndent(append(all, rows...), "", "  "); err != nil {
		return fmt.Errorf("write rows: %w", err)
	}
	return os.WriteFile(file, append(data, '\n'), 0o600)
}

func printRows(out io.Writer, rows []row) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tUNIT\tOURS\tREFERENCE\tRATIO\tTARGET")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s\t%.3g\t%.3g\t%.3f\t%s\n", r.Name, r.Unit, r.Ours, r.Reference, r.Ratio, r.Target)
	}
	return w.Flush()
}
