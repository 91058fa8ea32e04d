package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"istio-pod-network-controller/hack/kernels/job"
	"istio-pod-network-controller/hack/kernels/report"
)

// outcome is what became of one test or part of a test, and what it said.
type outcome struct{ action, reason, said string }

// read reads what the programs left.
func (m Machine) read(ctx context.Context, programs []job.Program) (report.Report, error) {
	r := report.Report{Kernel: m.Kernel.Series, Release: m.Kernel.Release, Package: m.Kernel.Package}
	counts := map[string]*report.Count{}
	for _, p := range programs {
		outcomes, err := m.outcomes(ctx, p, &r)
		if err != nil {
			return r, err
		}
		for _, name := range slices.Sorted(maps.Keys(outcomes)) {
			take(&r, p.Name+"."+name, outcomes[name], counts)
		}
	}
	for _, backend := range slices.Sorted(maps.Keys(counts)) {
		r.Backends = append(r.Backends, *counts[backend])
	}
	return r, nil
}

func take(r *report.Report, test string, o outcome, counts map[string]*report.Count) {
	for _, backend := range backends(test) {
		if counts[backend] == nil {
			counts[backend] = &report.Count{Backend: backend}
		}
		switch o.action {
		case "pass":
			counts[backend].Passed++
		case "skip":
			counts[backend].Skipped++
		default:
			counts[backend].Failed++
		}
	}
	switch {
	case o.action == "skip":
		r.Skipped = append(r.Skipped, report.Skip{Test: test, Reason: o.reason})
		if !tooOld(r.Release, o.reason) {
			r.Failed = append(r.Failed, test+" was skipped: "+o.reason)
		}
	case o.action != "pass":
		r.Failed = append(r.Failed, test)
	}
}

// tooOld reports whether a test was skipped since the kernel is older than what its reason names. A skip for another reason counts as a failure.
func tooOld(release, reason string) bool {
	var major, minor, first, second int
	_, needed, _ := strings.Cut(reason, ": it is older than Linux ")
	_, err := fmt.Sscanf(release, "%d.%d", &major, &minor)
	_, errNeeded := fmt.Sscanf(needed, "%d.%d", &first, &second)
	return err == nil && errNeeded == nil && (major < first || major == first && minor < second)
}

// backends says which backends a test's name speaks of.
func backends(test string) (names []string) {
	text := strings.NewReplacer(" ", "_", ",", "_").Replace(test)
	for _, b := range []struct{ name, pattern string }{
		{"nftables", `nftables`}, {"iptables-nft", `iptables_nft([/_]|$)|xtables.*/nft([/_]|$)|NftFlavour`}, {"iptables-legacy", `(?i)legacy`},
	} {
		if regexp.MustCompile(b.pattern).MatchString(text) {
			names = append(names, b.name)
		}
	}
	if names == nil {
		names = []string{"any"}
	}
	return names
}

// outcomes returns the results of a program's tests. Whole failures are added to the report. What failed tests have said is printed.
func (m Machine) outcomes(ctx context.Context, p job.Program, r *report.Report) (map[string]outcome, error) {
	outcomes, err := m.parse(ctx, p.Name)
	if err != nil {
		return nil, err
	}
	failed := false
	for _, name := range slices.Sorted(maps.Keys(outcomes)) {
		if outcomes[name].action == "fail" {
			failed = true
			fmt.Fprintf(m.Console, "%s.%s fails:\n%s", p.Name, name, outcomes[name].said)
		}
	}
	code, err := m.exitCode(p.Name)
	switch {
	case err != nil:
		r.Failed = append(r.Failed, p.Name+" did not run to its end")
	case code != 0 && !failed:
		r.Failed = append(r.Failed, fmt.Sprintf("%s ended with %d", p.Name, code))
	}
	return outcomes, nil
}

var reason = regexp.MustCompile(`^ +[a-z0-9_]+\.go:\d+: (.*)`)

// parse reads the output of one program: the result of each test without parts, and of each part without parts of its own.
func (m Machine) parse(ctx context.Context, name string) (map[string]outcome, error) {
	text, err := os.ReadFile(filepath.Join(m.Results, name+".out"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	convert := exec.CommandContext(ctx, "go", "tool", "test2json")
	convert.Stdin, convert.Stderr = bytes.NewReader(text), os.Stderr
	converted, err := convert.Output()
	if err != nil {
		return nil, fmt.Errorf("read the output of %s: %w", name, err)
	}
	outcomes := map[string]outcome{}
	for decoder := json.NewDecoder(bytes.NewReader(converted)); ; {
		var event struct{ Action, Test, Output string }
		if err := decoder.Decode(&event); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		if event.Test == "" {
			continue
		}
		o := outcomes[event.Test]
		switch event.Action {
		case "output":
			o.said += event.Output
			if match := reason.FindStringSubmatch(event.Output); match != nil {
				o.reason = match[1]
			}
		case "run", "pass", "fail", "skip":
			o.action = event.Action
		}
		outcomes[event.Test] = o
	}
	return leaves(outcomes), nil
}

// leaves keeps what has no parts, and what failed though none of its parts did.
func leaves(outcomes map[string]outcome) map[string]outcome {
	all := maps.Clone(outcomes)
	maps.DeleteFunc(outcomes, func(name string, o outcome) bool {
		parts, failed := 0, 0
		for other, part := range all {
			if strings.HasPrefix(other, name+"/") {
				parts++
				if part.action != "pass" && part.action != "skip" {
					failed++
				}
			}
		}
		return parts > 0 && (o.action != "fail" || failed > 0)
	})
	return outcomes
}
