package main

import (
	"errors"
	"fmt"
	"go/ast"
	"path"
	"slices"
	"strings"
)

// exitCode is one exit code of a program.
type exitCode struct{ program, code, meaning string }

// exitCodes returns every constant whose name starts with "exit" or "Exit" of the packages with command lines. Each needs a comment that says when
// the program ends with it.
func exitCodes(s *source) ([]exitCode, error) {
	var all []exitCode
	var errs []error
	for _, p := range s.packages {
		of := programOf(p.dir)
		if of == "" {
			continue
		}
		for _, c := range p.constants {
			number, ok := c.value.(*ast.BasicLit)
			if !strings.HasPrefix(strings.ToLower(c.name), "exit") || !ok {
				continue
			}
			if c.comment == "" {
				errs = append(errs, fmt.Errorf("%s: %s: say in a comment beside it when the program ends with it", s.at(c.pos), c.name))
			}
			all = append(all, exitCode{of, number.Value, c.comment})
		}
	}
	slices.SortStableFunc(all, func(a, b exitCode) int {
		return strings.Compare(a.program+" "+fmt.Sprintf("%3s", a.code), b.program+" "+fmt.Sprintf("%3s", b.code))
	})
	if len(all) == 0 {
		errs = append(errs, errors.New("no exit code found"))
	}
	return all, errors.Join(errs...)
}

// programOf returns the program that a package's exit codes belong to, or "".
func programOf(dir string) string {
	switch {
	case dir == "internal/cmdline":
		return "istio-pod-network-controller"
	case dir == "runtime/cni":
		return "istio-pod-network-cni"
	case path.Dir(dir) == "cmd":
		return path.Base(dir)
	}
	return ""
}

func exitCodesPage(all []exitCode) string {
	p := newPage("Exit codes", "the constants of the command lines")
	p.text("Every program ends with 0 when it has done what it was asked for. Messages go to standard error, and start with `error:`.")
	var rows [][]string
	for _, c := range all {
		rows = append(rows, []string{code(c.program), c.code, c.meaning})
	}
	p.table([]string{"Program", "Code", "When"}, rows)
	p.text("`istio-pod-network-controller sidecar exec` ends with the exit code of the command that it has run.")
	return p.String()
}
