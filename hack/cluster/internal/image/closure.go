package image

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// errDynamic says that a program would not start in an image that holds nothing else.
var errDynamic = errors.New("is dynamically linked: build it with CGO_ENABLED=0")

// CheckStatic refuses a program that needs a loader or libraries.
func CheckStatic(file string) error {
	f, err := elf.Open(file)
	if err != nil {
		return fmt.Errorf("%s is no Linux program: %w", file, err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("%s %w", file, errDynamic)
		}
	}
	return nil
}

// Closure is each program, at its own path, with every library that the machine's loader would give it.
func Closure(ctx context.Context, programs ...string) ([]Entry, error) {
	var entries []Entry
	for _, p := range programs {
		entries = append(entries, Entry{Path: p, Source: p})
		// The path as given is kept in the image: scripts call it by that.
		resolved, err := filepath.EvalSymlinks(p)
		if err != nil {
			return nil, fmt.Errorf("find %s: %w", p, err)
		}
		out, err := exec.CommandContext(ctx, "/usr/bin/ldd", resolved).Output()
		if err != nil {
			return nil, fmt.Errorf("ask ldd for the libraries of %s: %w", resolved, err)
		}
		libraries, err := libraries(string(out))
		if err != nil {
			return nil, fmt.Errorf("libraries of %s: %w", resolved, err)
		}
		for _, lib := range libraries {
			entries = append(entries, Entry{Path: lib, Source: lib})
		}
	}
	return entries, nil
}

// libraries reads ldd's lines: "name => /path (address)", "/loader (address)", and the kernel's own page, which has no path.
func libraries(ldd string) ([]string, error) {
	var paths []string
	for line := range strings.Lines(ldd) {
		if strings.Contains(line, "not found") {
			return nil, fmt.Errorf("missing library: %s", strings.TrimSpace(line))
		}
		for field := range strings.FieldsSeq(line) {
			if strings.HasPrefix(field, "/") {
				paths = append(paths, field)
			}
		}
	}
	return paths, nil
}
