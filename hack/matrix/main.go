// Command matrix runs what CI leaves out: other kernels, runtimes and clusters, all rounds of the end-to-end tests, and slow checks. A cell is one of
// them.
//
//	matrix run CHECKOUT CELLS    runs cells, one after the other
//	matrix table CHECKOUT        writes the tables of docs/reference/runs.md
//
// CELLS are words:
//
//	all            every cell
//	stale          cells without a result, those that failed, and those whose inputs have changed since
//	touched        cells whose inputs differ between the commit SINCE, an environment variable (HEAD^), and the working tree
//	kernel-6.1     cells with this name, or whose names begin so
//
// build/matrix has the log and the result of each cell. A cell that has passed at the same commit is not run again, so that a run that was
// cut off goes on where it was. hack/matrix/results.json keeps the last result of each cell. The files of this directory:
//
//	cells.go       the cells, and the inputs of each
//	inputs.go      whether a file is an input of a cell
//	checkout.go    which files have changed, and what packages import
//	run.go         runs a cell
//	table.go       the tables
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := start(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "matrix:", err)
		os.Exit(1)
	}
}

func start(ctx context.Context, arguments []string, out io.Writer) error {
	run := len(arguments) == 3 && arguments[0] == "run"
	if len(arguments) < 2 || !run && (len(arguments) > 2 || arguments[0] != "table") {
		return errors.New("usage: matrix run CHECKOUT CELLS, or matrix table CHECKOUT")
	}
	root, err := filepath.Abs(arguments[1])
	if err != nil {
		return err
	}
	checkout, err := open(ctx, root, out)
	if err != nil {
		return err
	}
	results, err := kept(root)
	if err != nil {
		return err
	}
	if !run && checkout.shallow(ctx) {
		fmt.Fprintln(out, "matrix: the history is shallow, so that no commit of a result is in it: the page stays as it is")
		return nil
	}
	if !run {
		return document(filepath.Join(root, "docs/reference/runs.md"), cells(), results, func(c Cell, r Result) (bool, error) {
			return checkout.stale(ctx, c.Inputs, r.Commit)
		})
	}
	chosen, err := choose(cells(), arguments[2], map[string]func(Cell) (bool, error){
		"all": func(Cell) (bool, error) { return true, nil },
		"stale": func(c Cell) (bool, error) {
			i := slices.IndexFunc(results, func(r Result) bool { return r.Cell == c.Name })
			if i < 0 || !results[i].Passed {
				return true, nil
			}
			return checkout.stale(ctx, c.Inputs, results[i].Commit)
		},
		"touched": func(c Cell) (bool, error) {
			return checkout.touched(ctx, c.Inputs, cmp.Or(os.Getenv("SINCE"), "HEAD^"))
		},
	})
	if err != nil {
		return err
	}
	commit, err := checkout.commit(ctx)
	if err != nil {
		return err
	}
	return runCells(ctx, chosen, Runner{Root: root, Directory: filepath.Join(root, "build/matrix"), Commit: commit, Out: out, Now: time.Now})
}

// choose returns the cells that a list of words names: conditions, or cells and beginnings of their names.
func choose(list []Cell, words string, conditions map[string]func(Cell) (bool, error)) ([]Cell, error) {
	var chosen []Cell
	for word := range strings.FieldsSeq(words) {
		condition, found := conditions[word]
		for _, c := range list {
			fits := c.Name == word || strings.HasPrefix(c.Name, word+"-")
			if condition != nil {
				var err error
				if fits, err = condition(c); err != nil {
					return nil, fmt.Errorf("choose cells that are %s: %w", word, err)
				}
			}
			found = found || fits
			if fits && !slices.ContainsFunc(chosen, func(other Cell) bool { return other.Name == c.Name }) {
				chosen = append(chosen, c)
			}
		}
		if !found {
			return nil, fmt.Errorf("no cell %q: there are %s", word, names(list, conditions))
		}
	}
	return chosen, nil
}

func names(list []Cell, conditions map[string]func(Cell) (bool, error)) string {
	all := slices.Sorted(maps.Keys(conditions))
	for _, c := range list {
		all = append(all, c.Name)
	}
	return strings.Join(all, ", ")
}

func runCells(ctx context.Context, chosen []Cell, runner Runner) error {
	if err := os.MkdirAll(runner.Directory, 0o755); err != nil {
		return err
	}
	fmt.Fprintf(runner.Out, "%d cells at commit %s\n", len(chosen), runner.Commit)
	var failed []string
	for _, c := range chosen {
		result, err := runner.run(ctx, c)
		if err != nil {
			return err
		}
		if !result.Passed {
			failed = append(failed, c.Name)
		}
		if err := keep(runner.Root, result); err != nil {
			return err
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("failed: %s", strings.Join(failed, ", "))
	}
	return nil
}

func resultsFile(root string) string { return filepath.Join(root, "hack/matrix/results.json") }

// kept returns the results of earlier runs.
func kept(root string) ([]Result, error) {
	results, err := read[[]Result](resultsFile(root))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return results, err
}

// keep puts a result in the place of the cell's earlier one.
func keep(root string, result Result) error {
	results, err := kept(root)
	if err != nil {
		return err
	}
	results = slices.DeleteFunc(results, func(r Result) bool { return r.Cell == result.Cell })
	results = append(results, result)
	slices.SortFunc(results, func(a, b Result) int { return strings.Compare(a.Cell, b.Cell) })
	return write(resultsFile(root), results)
}
