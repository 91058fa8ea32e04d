// Command kernels runs the product's tests that program the kernel on other kernels than the machine's: Debian's, each in a virtual
// machine of its own, with cgroup v2 alone. It needs no KVM. The kernels s390x and arm64 are of other processors: their machines have Debian's
// programs for these, and the tests are compiled for them.
//
//	kernels [-packages PATTERNS] [-tests PATTERN] [-append WORDS] CHECKOUT VERSION...
//	kernels -script FILE CHECKOUT VERSION...
//
// For each kernel, CHECKOUT/build/kernels/VERSION.json says what became of the tests, and the directory VERSION has what they said.
// With -append, the kernel gets more words on its command line, such as ipv6.disable=1; with -tests, only tests whose names match run.
// With -script, a script of the checkout runs there instead, in a larger machine: see hack/e2e.sh, E2E_KERNEL.
// The kernels' packages are kept in the user's cache. DEBIAN_MIRROR says where they come from, ACCEL=kvm runs them faster where there is KVM.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"istio-pod-network-controller/hack/kernels/job"
	"istio-pod-network-controller/hack/kernels/report"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "kernels:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, arguments []string, w io.Writer) error {
	flags := flag.NewFlagSet("kernels", flag.ContinueOnError)
	packages := flags.String("packages", everything, "patterns of packages")
	tests := flags.String("tests", "", "a pattern of tests")
	more := flags.String("append", "", "more words for the kernel's command line")
	script := flags.String("script", "", "a script of the checkout that runs instead of tests")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if flags.NArg() < 2 {
		return errors.New("want a checkout and versions, as in: kernels . 5.10 6.1")
	}
	root, err := filepath.Abs(flags.Arg(0))
	if err != nil {
		return err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	out := filepath.Join(root, "build/kernels")
	guest := filepath.Join(out, "bin/init")
	var failed error
	for _, series := range flags.Args()[1:] {
		kernel, err := fetch(ctx, filepath.Join(cache, "istio-pod-network-controller"), series)
		if err != nil {
			return err
		}
		if err := golang(ctx, filepath.Join(root, "hack"), kernel.Arch, "build", "-trimpath", "-o", guest, "./kernels/init").Run(); err != nil {
			return fmt.Errorf("build ./init: %w", err)
		}
		machine := Machine{Kernel: kernel, Init: guest, Results: filepath.Join(out, series), Console: w, Memory: 4096, Append: *more}
		if *script != "" {
			failed = errors.Join(failed, machine.script(ctx, root, *script, w))
			continue
		}
		programs, err := build(ctx, root, kernel.Arch, filepath.Join(out, "bin"), *packages, *tests)
		if err != nil {
			return err
		}
		failed = errors.Join(failed, machine.test(ctx, root, programs, w))
	}
	return failed
}

// test runs the programs on the machine's kernel and writes the report.
func (m Machine) test(ctx context.Context, root string, programs []job.Program, w io.Writer) error {
	fmt.Fprintf(w, "Linux %s (%s): the tests of %d packages\n", m.Kernel.Release, m.Kernel.Package, len(programs))
	began := time.Now()
	todo := job.Job{Modules: m.Kernel.Modules(), Programs: programs, Environment: []string{
		// Temporary files are not on the layer above the host's file tree, as on a real machine.
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "TMPDIR=/run",
	}}
	if m.Kernel.Programs != "" {
		todo.Modules, todo.Checkout = "", root
	}
	if err := m.Run(ctx, todo); err != nil {
		return err
	}
	told, err := m.read(ctx, programs)
	if err != nil {
		return err
	}
	told.Seconds = int(time.Since(began).Seconds())
	text, err := json.MarshalIndent(told, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(m.Results+".json", append(text, '\n'), 0o600); err != nil {
		return err
	}
	return show(w, told)
}

// show prints a report for people, and returns an error if something failed.
func show(w io.Writer, r report.Report) error {
	for _, c := range r.Backends {
		fmt.Fprintf(w, "%-16s %4d passed, %d failed, %d skipped\n", c.Backend, c.Passed, c.Failed, c.Skipped)
	}
	for _, s := range r.Skipped {
		fmt.Fprintf(w, "skipped: %s: %s\n", s.Test, s.Reason)
	}
	if len(r.Failed) > 0 {
		return fmt.Errorf("on Linux %s failed:\n  %s\nwhat they said is in build/kernels/%s", r.Release, strings.Join(r.Failed, "\n  "), r.Kernel)
	}
	return nil
}
