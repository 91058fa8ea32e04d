package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"istio-pod-network-controller/hack/kernels/job"
)

// limit bounds the tests of one package, for the case that they hang.
const limit = time.Hour

// everything is all packages, first those that are nearest to the kernel.
const everything = "./internal/... ./iptables/... ./test/... ./..."

// golang is the go command in a directory, for static programs for a processor.
func golang(ctx context.Context, dir, arch string, arguments ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", arguments...)
	cmd.Dir, cmd.Stderr, cmd.Env = dir, os.Stderr, append(os.Environ(), "CGO_ENABLED=0", "GOARCH="+arch)
	return cmd
}

// build builds those tests of packages that program network namespaces and whose names match a pattern, and returns how to run each package's.
func build(ctx context.Context, root, arch, dir, packages, pattern string) ([]job.Program, error) {
	wanted, err := regexp.Compile(pattern)
	if err != nil {
		return nil, fmt.Errorf("-tests: %w", err)
	}
	arguments := []string{"list", "-json=Dir,ImportPath,Module,TestImports,XTestImports"}
	text, err := golang(ctx, root, arch, append(arguments, strings.Fields(packages)...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("list packages: %w", err)
	}
	var programs []job.Program
	for decoder := json.NewDecoder(bytes.NewReader(text)); ; {
		var p struct {
			Dir, ImportPath           string
			Module                    struct{ Path string }
			TestImports, XTestImports []string
		}
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return programs, nil
		} else if err != nil {
			return nil, err
		}
		if !slices.Contains(slices.Concat(p.TestImports, p.XTestImports), p.Module.Path+"/test/kerneltest") {
			continue
		}
		tests, err := kernelTests(p.Dir)
		if err != nil {
			return nil, err
		}
		if tests = slices.DeleteFunc(tests, func(name string) bool { return !wanted.MatchString(name) }); len(tests) == 0 {
			continue
		}
		name := strings.TrimPrefix(p.ImportPath, p.Module.Path+"/")
		file := filepath.Join(dir, strings.ReplaceAll(name, "/", "_")+".test")
		if err := golang(ctx, root, arch, "test", "-c", "-trimpath", "-o", file, p.Dir).Run(); err != nil {
			return nil, fmt.Errorf("build the tests of %s: %w", name, err)
		}
		programs = append(programs, job.Program{
			Name: strings.ReplaceAll(name, "/", "_"), Directory: p.Dir, Limit: limit + time.Minute,
			Command: []string{file, "-test.v=test2json", "-test.timeout=" + limit.String(), "-test.run=^(" + strings.Join(tests, "|") + ")$"},
		})
	}
}

// kernelTests lists the tests in a package's files that import kerneltest: the others touch no kernel. Those of container runtimes need programs that the
// machine has not.
func kernelTests(dir string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return nil, err
	}
	function := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	var names []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		if !bytes.Contains(text, []byte(`/test/kerneltest"`)) || bytes.Contains(text, []byte(`/test/realruntimes"`)) {
			continue
		}
		for _, match := range function.FindAllSubmatch(text, -1) {
			names = append(names, string(match[1]))
		}
	}
	return names, nil
}
