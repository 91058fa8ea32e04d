// Command matrix runs the product's tests on what users have: other kernels, runtimes and clusters, a cell each.
//
//	matrix run CHECKOUT CELLS    runs cells, by "all", "quick" or names, one after the other
//	matrix table CHECKOUT        writes the tables of docs/support-matrix.md from hack/matrix/results.json
//
// The log and the result of each cell are in build/matrix. A cell that has passed at the same commit is not run again, so that a run that was
// cut off goes on where it was. Results are kept in hack/matrix/results.json, except those of "quick", which only shows what broke.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
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
	switch {
	case len(arguments) == 3 && arguments[0] == "run":
		return runCells(ctx, arguments[1], arguments[2], out)
	case len(arguments) == 2 && arguments[0] == "table":
		results, err := kept(arguments[1])
		if err != nil {
			return err
		}
		return document(filepath.Join(arguments[1], "docs/support-matrix.md"), results)
	}
	return errors.New("usage: matrix run CHECKOUT CELLS, or matrix table CHECKOUT")
}

func runCells(ctx context.Context, root, words string, out io.Writer) error {
	chosen, err := choose(cells(), words)
	if err != nil {
		return err
	}
	runner := Runner{Root: root, Directory: filepath.Join(root, "build/matrix"), Out: out, Now: time.Now}
	if runner.Commit, err = commit(ctx, root); err != nil {
		return err
	}
	if err := os.MkdirAll(runner.Directory, 0o755); err != nil {
		return err
	}
	var failed []string
	for _, c := range chosen {
		result, err := runner.run(ctx, c)
		if err != nil {
			return err
		}
		if !result.Passed {
			failed = append(failed, c.Name)
		}
		if words != "quick" {
			if err := keep(root, result); err != nil {
				return err
			}
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
