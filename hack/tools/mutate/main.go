// Mutate changes the code that makes rules, one place at a time, and lists the changes that no pure test notices.
//
//	mutate [-only TEXT] [-jobs N] [-limit DURATION] DIRECTORY
//
// All changes are compiled at once: a function has a copy for each, and the environment variable MUTANT chooses one.
//
// It says of each change whether a test of verdicts notices it, or only one of texts (golden files, which are written anew with each change of
// the rules). accepted.txt has survivors with a reason each. Another survivor is a failure.
package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

//go:embed accepted.txt
var accepted string

// builders are the files whose functions make rules. leave are functions in them that make none.
var (
	builders = []string{"rules.go", "conds.go", "sets.go", "inbound.go", "outbound.go", "tproxy.go", "zones.go", "reused.go", "validation.go", "directipv6.go", "ports.go", "spec.go"}
	leave    = []string{"Validate", "Hash", "DefaultSpec", "Marks", "ChainNames", "Validation", "CapturesListener", "String", "text", "Contains", "SubtractPorts", "SplitPorts", "portLists"}
)

// The results of a mutation.
const (
	byVerdict = "a test of verdicts notices"
	byText    = "only a test of texts notices"
	survives  = "survives"
)

func main() {
	only := flag.String("only", "", "mutations whose name contains this text")
	jobs := flag.Int("jobs", 2, "mutations at a time")
	limit := flag.Duration("limit", 15*time.Minute, "time for all")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), *limit)
	defer cancel()
	if err := run(ctx, flag.Arg(0), *only, *jobs); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) //nolint:gocritic // nothing is left to cancel
	}
}

func run(ctx context.Context, root, only string, jobs int) error {
	root, err := filepath.Abs(root)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	sources, constants, next := []*source{}, map[string]bool{}, 0
	for _, name := range builders {
		s, err := parse(filepath.Join(root, "iptables", name))
		if err != nil {
			return err
		}
		s.collect(constants)
		sources = append(sources, s)
	}
	for _, s := range sources {
		s.mutate(constants, &next, leave)
	}
	began := time.Now()
	if err := build(ctx, root, dir, sources); err != nil {
		return err
	}
	var all []*mutation
	for _, s := range sources {
		for _, f := range s.functions {
			all = append(all, f.mutations...)
		}
	}
	fmt.Printf("%d mutations, and %d that do not compile; built in %s\n", len(all), next-len(all), time.Since(began).Round(time.Second))
	all = slices.DeleteFunc(all, func(m *mutation) bool { return !strings.Contains(m.name, only) })
	if result := try(ctx, root, dir, &mutation{}); result != survives { // 0 is no mutation
		return fmt.Errorf("without a mutation: %s", result)
	}
	results := tryAll(ctx, root, dir, all, jobs)
	if ctx.Err() != nil {
		return fmt.Errorf("not all mutations were tried: %w", ctx.Err())
	}
	return report(all, results, time.Since(began), only != "")
}

// steps are the tests, in the order in which they are run, and what it means if one fails.
var steps = []struct{ dir, result string }{{"test/interpreter", byVerdict}, {"iptables", byText}}

// build compiles the tests, and leaves out mutations that do not compile. Tests that program a kernel are no part of it.
func build(ctx context.Context, root, dir string, sources []*source) error {
	own := filepath.Join(dir, "mutant.go")
	if err := os.WriteFile(own, []byte("package iptables\n\nimport (\n\"os\"\n\"strconv\"\n)\n\nvar mutant, _ = strconv.Atoi(os.Getenv(\"MUTANT\"))\n"), 0o600); err != nil {
		return err
	}
	replaced := map[string]string{filepath.Join(root, "iptables", "mutant.go"): own}
	for _, name := range []string{"kernel_test.go", "wire_test.go", "observer_test.go"} {
		replaced[filepath.Join(root, "test/interpreter", name)] = ""
	}
	for range 20 {
		lines := map[string]map[int]*mutation{}
		for _, s := range sources {
			var text string
			name := filepath.Base(s.path)
			text, lines[name] = s.schemata()
			replaced[s.path] = filepath.Join(dir, name)
			if err := os.WriteFile(replaced[s.path], []byte(text), 0o600); err != nil {
				return err
			}
		}
		overlay, err := json.Marshal(map[string]any{"Replace": replaced})
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600); err != nil {
			return err
		}
		out, err := goTool(ctx, root, "build", "-gcflags=-e", "-overlay", filepath.Join(dir, "overlay.json"), "./iptables")
		if err == nil {
			return link(ctx, root, dir)
		}
		if !leaveOut(sources, lines, string(out)) {
			return fmt.Errorf("build: %w\n%s", err, out)
		}
	}
	return errors.New("build: too many rounds")
}

func link(ctx context.Context, root, dir string) error {
	for _, s := range steps {
		if out, err := goTool(ctx, root, "test", "-c", "-vet=off", "-o", filepath.Join(dir, filepath.Base(s.dir)), "-overlay", filepath.Join(dir, "overlay.json"), "./"+s.dir); err != nil {
			return fmt.Errorf("build %s: %w\n%s", s.dir, err, out)
		}
	}
	return nil
}

func goTool(ctx context.Context, root string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	return cmd.CombinedOutput()
}

var place = regexp.MustCompile(`([a-z0-9]+\.go):([0-9]+):`)

// leaveOut removes the mutations that the compiler complains of, and reports whether there is any.
func leaveOut(sources []*source, lines map[string]map[int]*mutation, complaints string) (found bool) {
	bad := map[*mutation]bool{}
	for _, m := range place.FindAllStringSubmatch(complaints, -1) {
		n, _ := strconv.Atoi(m[2])
		for ; n > 0 && lines[m[1]][n] == nil; n-- {
		}
		if mutant := lines[m[1]][n]; mutant != nil {
			bad[mutant] = true
		}
	}
	for _, s := range sources {
		for _, f := range s.functions {
			f.mutations = slices.DeleteFunc(f.mutations, func(m *mutation) bool { return bad[m] })
		}
	}
	return len(bad) > 0
}

// tryAll runs the tests with each mutation.
func tryAll(ctx context.Context, root, dir string, all []*mutation, jobs int) []string {
	results, next := make([]string, len(all)), make(chan int)
	var wg sync.WaitGroup
	for range jobs {
		wg.Go(func() {
			for i := range next {
				results[i] = try(ctx, root, dir, all[i])
				fmt.Printf("%d of %d: %s: %s\n", i+1, len(all), results[i], all[i].name)
			}
		})
	}
	for i := range all {
		next <- i
	}
	close(next)
	wg.Wait()
	return results
}

func try(ctx context.Context, root, dir string, m *mutation) (result string) {
	for _, step := range steps {
		cmd := exec.CommandContext(ctx, filepath.Join(dir, filepath.Base(step.dir)), "-test.failfast", "-test.timeout=3m")
		cmd.Dir, cmd.Env = filepath.Join(root, step.dir), append(os.Environ(), fmt.Sprintf("MUTANT=%d", m.id))
		if cmd.Run() != nil {
			return step.result
		}
	}
	return survives
}

// report says how many mutations are noticed, and by what, and fails if one survives that is not accepted, or if one is accepted in vain.
func report(all []*mutation, results []string, took time.Duration, partly bool) error {
	reasons := map[string]string{}
	for line := range strings.Lines(accepted) {
		if name, reason, ok := strings.Cut(strings.TrimSpace(line), " # "); ok {
			reasons[name] = reason
		}
	}
	count, wrong := map[string]int{}, []error{}
	for i, m := range all {
		count[results[i]]++
		if results[i] == survives && reasons[m.name] == "" {
			wrong = append(wrong, fmt.Errorf("survives: %s", m.name))
		}
		if results[i] == survives {
			delete(reasons, m.name)
		}
	}
	for name := range reasons {
		if !partly {
			wrong = append(wrong, fmt.Errorf("accepted, but does not survive: %s", name))
		}
	}
	fmt.Printf("%d mutations in %s: %v\n", len(all), took.Round(time.Second), count)
	return errors.Join(wrong...)
}
