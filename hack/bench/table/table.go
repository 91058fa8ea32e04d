// Package table has the rows that benches print and add to build/bench.json: each figure beside its reference, taken in the same run.
package table

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

// Row is a figure, what it is compared with (0: with nothing), and its target.
type Row struct {
	Name      string  `json:"name"`
	Unit      string  `json:"unit"`
	Ours      float64 `json:"ours"`
	Reference float64 `json:"reference"`
	Target    string  `json:"target"`
	Ratio     float64 `json:"ratio"`
	most      float64 // the ratio above which the run fails; 0: it does not
}

// New returns the row of a figure that is reported. To gives it a target.
func New(name, unit string, ours, reference float64) Row {
	r := Row{Name: name, Unit: unit, Ours: ours, Reference: reference, Target: "reported"}
	if reference != 0 {
		r.Ratio = ours / reference
	}
	return r
}

// InRounds compares figures that were measured in turn. The ratio is the median of the rounds' ratios: what slows the machine down for a while
// slows both figures of a round.
func InRounds(name, unit string, ours, reference []float64) Row {
	ratios := make([]float64, len(ours))
	for i := range ours {
		ratios[i] = ours[i] / reference[i]
	}
	r := New(name, unit, Quantile(ours, 50), Quantile(reference, 50))
	r.Ratio = Quantile(ratios, 50)
	return r
}

// To returns the row with a target, for people.
func (r Row) To(target string) Row {
	r.Target = target
	return r
}

// AtMost returns the row with a ratio above which the run fails.
func (r Row) AtMost(ratio float64) Row {
	r.most, r.Target = ratio, fmt.Sprintf("%g times", ratio)
	return r
}

// Missed returns an error that names the rows by which the run fails.
func Missed(rows []Row) error {
	var errs []error
	for _, r := range rows {
		if r.most > 0 && r.Ratio > r.most {
			errs = append(errs, fmt.Errorf("%s: %.3g times, want at most %g", r.Name, r.Ratio, r.most))
		}
	}
	return errors.Join(errs...)
}

// Print writes rows for people.
func Print(out io.Writer, rows []Row) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tUNIT\tOURS\tREFERENCE\tRATIO\tTARGET")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s\t%.3g\t%.3g\t%.3f\t%s\n", r.Name, r.Unit, r.Ours, r.Reference, r.Ratio, r.Target)
	}
	return w.Flush()
}

// Add puts rows into a file, in the place of older ones of the same name and unit.
func Add(file string, rows []Row) error {
	var all []Row
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, &all)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read rows of %s: %w", file, err)
	}
	all = slices.DeleteFunc(all, func(old Row) bool {
		return slices.ContainsFunc(rows, func(r Row) bool { return r.Name == old.Name && r.Unit == old.Unit })
	})
	if data, err = json.MarshalIndent(append(all, rows...), "", "  "); err != nil {
		return fmt.Errorf("write rows: %w", err)
	}
	return os.WriteFile(file, append(data, '\n'), 0o600)
}

// Quantile returns the value that so many percent of values do not reach.
func Quantile(values []float64, percent int) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(len(sorted)*percent/100, len(sorted)-1)]
}
