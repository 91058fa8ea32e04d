// Command refdocs writes docs/reference: the annotations, flags, metrics, events, conditions, exit codes and documents for machines, from the code itself.
// What a program prints about its flags comes from the program. Metrics and exit codes are described in the code, keys and reasons here.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	usages := flag.String("usages", "", "directory with a file PROGRAM.txt for each small program: what it prints for -h")
	flag.Parse()
	if flag.NArg() != 2 {
		fmt.Fprintln(os.Stderr, "usage: refdocs [-usages DIRECTORY] CHECKOUT OUTPUT")
		os.Exit(2)
	}
	if err := write(flag.Arg(0), *usages, flag.Arg(1)); err != nil {
		fmt.Fprintln(os.Stderr, "refdocs:", err)
		os.Exit(1)
	}
}

// write makes the pages of a checkout. Every fault is named at once.
func write(checkout, usages, output string) error {
	all, err := pages(checkout, usages)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(output, 0o755); err != nil {
		return fmt.Errorf("make the pages' directory: %w", err)
	}
	for name, text := range all {
		if err := os.WriteFile(filepath.Join(output, name), []byte(text), 0o644); err != nil {
			return fmt.Errorf("write page: %w", err)
		}
	}
	return nil
}

// pages returns the pages by file name.
func pages(checkout, usages string) (map[string]string, error) {
	s, err := parseSource(checkout)
	if err != nil {
		return nil, err
	}
	metrics, errMetrics := s.metrics()
	codes, errCodes := exitCodes(s)
	profiles, errProfiles := conditionsOfProfiles(s)
	programs, errPrograms := smallPrograms(usages)
	outputs, errOutputs := documentsPage(s)
	if err := errors.Join(errMetrics, errCodes, errProfiles, errPrograms, errOutputs); err != nil {
		return nil, err
	}
	return map[string]string{
		"annotations.md": annotationsPage(),
		"flags.md":       flagsPage(programs),
		"metrics.md":     metricsPage(metrics),
		"events.md":      eventsPage(),
		"conditions.md":  conditionsPage(reasonsOfIntent(s), profiles),
		"exit-codes.md":  exitCodesPage(codes),
		"json.md":        outputs,
	}, nil
}
