package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Checkout knows what has changed in a checkout. It asks git and the go command once for each answer.
type Checkout struct {
	Root string
	// Notes are for people: commits that cannot be compared with.
	Notes io.Writer

	packages map[string]bool
	reached  map[Inputs]map[string]bool
	changes  map[string][]string
	unknown  map[string]bool
}

// open fails where there is no git, or no history.
func open(ctx context.Context, root string, notes io.Writer) (*Checkout, error) {
	c := &Checkout{
		Root: root, Notes: notes,
		packages: map[string]bool{}, reached: map[Inputs]map[string]bool{}, changes: map[string][]string{}, unknown: map[string]bool{},
	}
	files, err := c.git(ctx, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.go")
	if err != nil {
		return nil, fmt.Errorf("list the checkout's files: %w", err)
	}
	for _, file := range files {
		if !strings.Contains(file, "testdata/") {
			c.packages[path.Dir(file)] = true
		}
	}
	return c, nil
}

// shallow reports whether the history is cut off.
func (c *Checkout) shallow(ctx context.Context) bool {
	said, err := c.git(ctx, "rev-parse", "--is-shallow-repository")
	return err == nil && strings.TrimSpace(strings.Join(said, "")) == "true"
}

// commit names the last commit that changed more than what a run itself writes, so that a run that commits its results is not begun anew.
func (c *Checkout) commit(ctx context.Context) (string, error) {
	others := []string{"--", ".", ":!hack/matrix/results.json", ":!docs/reference/runs.md"}
	names, err := c.git(ctx, append([]string{"log", "-1", "-z", "--abbrev=10", "--format=%h"}, others...)...)
	if err == nil && len(names) == 0 {
		err = errors.New("there is none")
	}
	if err != nil {
		return "", fmt.Errorf("name the last commit: %w", err)
	}
	changes, err := c.git(ctx, append([]string{"status", "-z", "--porcelain"}, others...)...)
	if err != nil {
		return "", fmt.Errorf("look for changes: %w", err)
	}
	if len(changes) > 0 {
		return names[0] + "-dirty", nil
	}
	return names[0], nil
}

// stale reports whether inputs have changed since a commit. They count as changed since one that HEAD does not contain, as in a shallow clone.
func (c *Checkout) stale(ctx context.Context, i Inputs, commit string) (bool, error) {
	if strings.HasSuffix(commit, "-dirty") || c.unknown[commit] {
		return true, nil
	}
	if _, known := c.changes[commit]; !known {
		_, err := c.git(ctx, "merge-base", "--is-ancestor", commit, "HEAD")
		if ended := new(exec.ExitError); errors.As(err, &ended) {
			fmt.Fprintf(c.Notes, "matrix: HEAD does not contain commit %q: its results are stale\n", commit)
			c.unknown[commit] = true
			return true, nil
		}
	}
	return c.touched(ctx, i, commit)
}

// touched reports whether inputs differ between a commit and the working tree.
func (c *Checkout) touched(ctx context.Context, i Inputs, commit string) (bool, error) {
	if _, known := c.changes[commit]; !known {
		// A file that has another name counts under both.
		changed, err := c.git(ctx, "diff", "-z", "--name-only", "--no-renames", commit, "--")
		if err != nil {
			return false, fmt.Errorf("compare with commit %q: %w", commit, err)
		}
		added, err := c.git(ctx, "ls-files", "-z", "--others", "--exclude-standard")
		if err != nil {
			return false, fmt.Errorf("list new files: %w", err)
		}
		c.changes[commit] = append(changed, added...)
	}
	reached, err := c.reach(ctx, i)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(c.changes[commit], func(file string) bool { return i.contain(c.packages, reached, file) }), nil
}

// reach returns the directories of the packages among the inputs: true where tests run.
//
// Those of today are enough: if the inputs had others at a commit, an input that is in both has changed, which imports them.
func (c *Checkout) reach(ctx context.Context, i Inputs) (map[string]bool, error) {
	i.Paths = ""
	if dirs, known := c.reached[i]; known || i.Packages == "" {
		return dirs, nil
	}
	const ours = `{{with .Module}}{{if .Main}}{{not $.DepOnly}} {{$.Dir}}{{"\n"}}{{end}}{{end}}`
	arguments := append([]string{"list", "-deps", fmt.Sprintf("-test=%t", i.Tests), "-f", ours}, strings.Fields(i.Packages)...)
	text, err := output(ctx, c.Root, "go", arguments...)
	if err != nil {
		return nil, fmt.Errorf("list what packages import: %w", err)
	}
	dirs := map[string]bool{}
	for line := range strings.Lines(text) {
		named, dir, found := strings.Cut(strings.TrimSpace(line), " ")
		if !found {
			continue
		}
		if dir, err = filepath.Rel(c.Root, dir); err != nil {
			return nil, err
		}
		dirs[dir] = dirs[dir] || i.Tests && named == "true"
	}
	c.reached[i] = dirs
	return dirs, nil
}

// git returns what git says, by the zeros behind each.
func (c *Checkout) git(ctx context.Context, arguments ...string) ([]string, error) {
	text, err := output(ctx, c.Root, "git", arguments...)
	return strings.FieldsFunc(text, func(r rune) bool { return r == 0 }), err
}

// output runs a program. What the go command says is the same on all machines.
func output(ctx context.Context, dir, name string, arguments ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, arguments...)
	cmd.Dir, cmd.Env = dir, append(cmd.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(stderr.String()))
	}
	return string(text), nil
}
