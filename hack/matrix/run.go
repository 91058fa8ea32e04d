package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"istio-pod-network-controller/hack/kernels/report"
)

// Result is what became of a cell.
type Result struct {
	Cell    string `json:"cell"`
	Shows   string `json:"shows"`
	Passed  bool   `json:"passed"`
	Date    string `json:"date"`
	Commit  string `json:"commit"`
	Seconds int    `json:"seconds"`
	// Report is what hack/kernels writes.
	Report *report.Report `json:"report,omitempty"`
}

// Runner runs cells in a checkout. The log and the result of each are in Directory.
type Runner struct {
	Root, Directory string
	Commit          string
	Out             io.Writer
	Now             func() time.Time
}

// run runs the cell, unless it has passed at this commit.
func (r Runner) run(ctx context.Context, c Cell) (Result, error) {
	file := filepath.Join(r.Directory, c.Name+".json")
	if earlier, err := read[Result](file); err == nil && earlier.Passed && earlier.Commit == r.Commit && !strings.HasSuffix(r.Commit, "-dirty") {
		fmt.Fprintf(r.Out, "%-20s passed before, at this commit\n", c.Name)
		return earlier, nil
	}
	log, err := os.Create(filepath.Join(r.Directory, c.Name+".log"))
	if err != nil {
		return Result{}, err
	}
	defer log.Close()
	reported := filepath.Join(r.Root, "build/kernels", c.Kernel+".json")
	if c.Kernel != "" {
		if err := os.Remove(reported); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return Result{}, err
		}
	}
	began := r.Now()
	cmd := exec.CommandContext(ctx, c.Command[0], c.Command[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = r.Root, append(os.Environ(), c.Variables...), log, log
	failure := cmd.Run()
	if err := ctx.Err(); err != nil {
		return Result{}, err
	}
	result := Result{
		Cell: c.Name, Shows: c.Shows, Passed: failure == nil, Commit: r.Commit,
		Date: began.UTC().Format(time.DateOnly), Seconds: int(r.Now().Sub(began).Seconds()),
	}
	if c.Kernel != "" {
		told, err := read[report.Report](reported)
		if err == nil {
			result.Report = &told
		} else if result.Passed {
			return result, fmt.Errorf("%s passed and left no report: %w", c.Name, err)
		}
	}
	word := "passed"
	if failure != nil {
		word = fmt.Sprintf("FAILED (%v): see %s", failure, log.Name())
	}
	fmt.Fprintf(r.Out, "%-20s %s, %d s\n", c.Name, word, result.Seconds)
	return result, write(file, result)
}

// commit names the state of the checkout: what a run itself writes is no change.
func commit(ctx context.Context, root string) (string, error) {
	head := exec.CommandContext(ctx, "git", "rev-parse", "--short=10", "HEAD")
	changed := exec.CommandContext(ctx, "git", "status", "--porcelain", "--", ":!hack/matrix/results.json", ":!docs/support-matrix.md")
	head.Dir, changed.Dir = root, root
	name, err := head.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w", head, err)
	}
	changes, err := changed.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w", changed, err)
	}
	if len(changes) > 0 {
		return strings.TrimSpace(string(name)) + "-dirty", nil
	}
	return strings.TrimSpace(string(name)), nil
}

func read[T any](file string) (value T, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return value, err
	}
	return value, json.Unmarshal(text, &value)
}

func write(file string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}
