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
	"regexp"
	"strconv"
	"strings"
	"time"

	"istio-pod-network-controller/hack/kernels/report"
)

// Result is what became of a cell.
type Result struct {
	Cell    string `json:"cell"`
	Passed  bool   `json:"passed"`
	Date    string `json:"date"`
	Commit  string `json:"commit"`
	Seconds int    `json:"seconds"`
	// Tests is how many have passed. Results of before it was counted have none.
	Tests int `json:"tests,omitempty"`
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
	result := Result{Cell: c.Name, Commit: r.Commit, Date: began.UTC().Format(time.DateOnly), Seconds: int(r.Now().Sub(began).Seconds())}
	if result.Report, result.Tests, err = tests(log.Name(), reported, c.Kernel); err != nil && failure == nil {
		return result, fmt.Errorf("count the tests of %s: %w", c.Name, err)
	}
	if failure == nil && result.Tests == 0 && !c.Testless {
		failure = errors.New("no test has passed")
	}
	result.Passed = failure == nil
	word := "passed"
	if failure != nil {
		word = fmt.Sprintf("FAILED (%v): see %s", failure, log.Name())
	}
	fmt.Fprintf(r.Out, "%-20s %s, %d tests, %d s\n", c.Name, word, result.Tests, result.Seconds)
	return result, write(file, result)
}

// passes are the lines of `go test -v` for a test without its parts, and of hack/test.sh for many tests.
var passes = regexp.MustCompile(`(?m)^(?:--- PASS: | +(\d+) tests passed$)`)

// tests returns how many tests have passed: as the report on a kernel says, or else the log.
func tests(log, reported, kernel string) (*report.Report, int, error) {
	sum := 0
	if kernel != "" {
		told, err := read[report.Report](reported)
		if err != nil {
			return nil, 0, err
		}
		for _, c := range told.Backends {
			sum += c.Passed
		}
		return &told, sum, nil
	}
	text, err := os.ReadFile(log)
	if err != nil {
		return nil, 0, err
	}
	for _, match := range passes.FindAllSubmatch(text, -1) {
		number, err := strconv.Atoi(string(match[1]))
		if err != nil {
			number = 1
		}
		sum += number
	}
	return nil, sum, nil
}

func read[T any](file string) (value T, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return value, err
	}
	if err := json.Unmarshal(text, &value); err != nil {
		return value, fmt.Errorf("read %s: %w", file, err)
	}
	return value, nil
}

func write(file string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}
