package program

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"istio-pod-network-controller/hack/cluster/internal/layout"
)

// heartbeat is how long a build may be silent: a first build of Kubernetes takes minutes, and must not look as if it hung.
const heartbeat = 20 * time.Second

// interrupted is how long go has to remove its temporary files after an interrupt. It waits for the compilers that run.
const interrupted = 20 * time.Second

// Set is a directory of programs and what is to be in it. Its life is: Open looks at the pins, Missing at the directory, Build fills
// it. Nothing ever changes a program that is there, so a cluster that runs from a set is safe from later builds.
type Set struct {
	// Dir holds the programs. It is named by the pins, so a change of them is another directory.
	Dir     string
	recipes []Recipe
	native  map[string]string
	pins    string // directory of the module that pins the programs
	tags    string
	ldflags string
	// written says that the pins are in a module of ours, to which go adds what a build needs.
	written bool
}

// mod is go's flag -mod.
func (s Set) mod() string {
	if s.written {
		return "mod"
	}
	return "readonly"
}

// Open says which set the checkout's pins ask for. It builds nothing.
func Open(ctx context.Context, l layout.Layout) (Set, error) {
	version, err := KubernetesVersion(l.Pins())
	if err != nil {
		return Set{}, err
	}
	compiler, err := goVersion(goCommand(ctx, l.Pins(), "env", "GOVERSION"))
	if err != nil {
		return Set{}, err
	}
	s := Set{recipes: Recipes(), pins: l.Pins(), tags: tags, ldflags: "-s -w " + stamp(version)}
	k, err := key(compiler, s.ldflags, s.recipes, s.pins)
	s.Dir = filepath.Join(l.Cache, k, "bin")
	return s, err
}

func goVersion(asks *exec.Cmd) (string, error) {
	version, err := asks.Output()
	if err != nil {
		return "", fmt.Errorf("ask go for its version (Go 1.26 must be in PATH): %w", err)
	}
	return strings.TrimSpace(string(version)), nil
}

// Missing lists which of the named programs, or of all, are not there yet.
func (s Set) Missing(names ...string) ([]Recipe, error) {
	for _, name := range names {
		if !slices.ContainsFunc(s.recipes, func(r Recipe) bool { return r.Output == name }) {
			return nil, fmt.Errorf("no program %q among those of the cluster", name)
		}
	}
	var missing []Recipe
	for _, r := range s.recipes {
		if len(names) > 0 && !slices.Contains(names, r.Output) {
			continue
		}
		if _, err := os.Stat(filepath.Join(s.Dir, r.Output)); err != nil {
			missing = append(missing, r)
		}
	}
	return missing, nil
}

// Build builds what Missing has listed, and prints how long it will take. Programs with C code come first, because a package that the machine
// lacks shows there. The others share one go command, which links some while it compiles others. Programs that were built stay when a later one
// fails, and packages that were compiled stay in Go's cache.
func (s Set) Build(ctx context.Context, missing []Recipe, out io.Writer) error {
	start := time.Now()
	if err := s.buildNative(ctx, out); err != nil {
		return err
	}
	for _, step := range steps(missing) {
		fmt.Fprintf(out, "%7.1fs  building %s\n", time.Since(start).Seconds(), strings.Join(outputs(step), ", "))
		stop := everyHeartbeat(func() {
			fmt.Fprintf(out, "%7.1fs  listing the packages, of modules that may be downloaded\n", time.Since(start).Seconds())
		})
		m, err := s.measure(ctx, step, out)
		stop()
		if err != nil {
			return err
		}
		stop = everyHeartbeat(func() { fmt.Fprintf(out, "%7.1fs  %s\n", time.Since(start).Seconds(), m.report(time.Now())) })
		err = s.build(ctx, step, m)
		stop()
		if err != nil {
			return err
		}
	}
	if len(missing) > 0 {
		fmt.Fprintf(out, "%7.1fs  %d programs are in %s\n", time.Since(start).Seconds(), len(missing), s.Dir)
	}
	return nil
}

// steps are the programs with C code and those without.
func steps(recipes []Recipe) (steps [][]Recipe) {
	for _, cgo := range []bool{true, false} {
		step := slices.DeleteFunc(slices.Clone(recipes), func(r Recipe) bool { return r.Cgo != cgo })
		if len(step) > 0 {
			steps = append(steps, step)
		}
	}
	return steps
}

func outputs(step []Recipe) []string {
	var names []string
	for _, r := range step {
		names = append(names, r.Output)
	}
	return names
}

// measure asks go how many packages a step has. What go says meanwhile, as which modules it downloads, goes to out.
func (s Set) measure(ctx context.Context, step []Recipe, out io.Writer) (*meter, error) {
	args := []string{"list", "-mod=" + s.mod(), "-deps", "-tags", s.tags}
	for _, r := range step {
		args = append(args, r.Package)
	}
	cmd := s.goCommand(ctx, step, args...)
	cmd.Stderr = out
	packages, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the packages of %s: %w", strings.Join(outputs(step), ", "), err)
	}
	return newMeter(strings.Fields(string(packages)), len(step), func() int { return s.linked(step) }), nil
}

// partial is where the programs of a step are linked. They get their names when all are there.
func (s Set) partial(step []Recipe) string { return filepath.Join(s.Dir, step[0].Output+".partial") }

// linked counts the programs that are linked already.
func (s Set) linked(step []Recipe) int {
	files, _ := filepath.Glob(filepath.Join(s.partial(step), "*"))
	return len(files)
}

// build passes on the end of the compiler's own words when it fails.
func (s Set) build(ctx context.Context, step []Recipe, m *meter) error {
	partial := s.partial(step)
	// What a build that was killed has linked would count as linked.
	if err := errors.Join(os.RemoveAll(partial), os.MkdirAll(partial, 0o755)); err != nil {
		return fmt.Errorf("make the programs' directory: %w", err)
	}
	defer os.RemoveAll(partial) //nolint:errcheck // the next build removes it, too
	args := []string{"build", "-mod=" + s.mod(), "-v", "-trimpath", "-buildvcs=false", "-tags", s.tags, "-gcflags", Gcflags, "-ldflags", s.ldflags, "-o", partial + "/"}
	for _, r := range step {
		args = append(args, r.Package)
	}
	cmd := s.goCommand(ctx, step, args...)
	var stderr bytes.Buffer
	cmd.Stderr = io.MultiWriter(&stderr, m)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", strings.Join(outputs(step), ", "), err, tail(m.withoutPackages(stderr.String()), 30))
	}
	for _, r := range step {
		target := filepath.Join(s.Dir, r.Output)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return fmt.Errorf("make the programs' directory: %w", err)
		}
		if err := os.Rename(filepath.Join(partial, r.executable()), target); err != nil {
			return fmt.Errorf("keep %s: %w", r.Output, err)
		}
	}
	return nil
}

// goCommand is a go command for the programs of a step.
func (s Set) goCommand(ctx context.Context, step []Recipe, args ...string) *exec.Cmd {
	cmd := goCommand(ctx, s.pins, args...)
	if s.written {
		cmd = anyGo(cmd)
	}
	cgo := "CGO_ENABLED=0"
	if step[0].Cgo {
		cgo = "CGO_ENABLED=1"
	}
	cmd.Env = append(cmd.Env, cgo, "GOGC="+garbage)
	return cmd
}

// goCommand runs go as the pins want it: a workspace around the checkout must not change them.
func goCommand(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = interrupted
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off")
	return cmd
}

// anyGo has go fetch the Go that the module wants, if it is newer.
func anyGo(cmd *exec.Cmd) *exec.Cmd {
	cmd.Env = append(cmd.Env, "GOTOOLCHAIN=auto")
	return cmd
}

// everyHeartbeat calls say now and then until stop.
func everyHeartbeat(say func()) (stop func()) {
	ticker := time.NewTicker(heartbeat)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				say()
			}
		}
	}()
	return func() { ticker.Stop(); close(done) }
}

// tail is where the compiler says what was wrong.
func tail(text string, lines int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// key names a directory by everything that decides what the programs in it are: the pins, the recipes, the flags, the compiler.
func key(goVersion, ldflags string, recipes []Recipe, pins string) (string, error) {
	h := sha256.New()
	// The recipes' own order counts, which costs a rebuild at most.
	fmt.Fprintf(h, "%s\n%s\n%s\n%s\n%+v\n", goVersion, ldflags, tags, Gcflags, recipes)
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(pins, name))
		if err != nil {
			return "", fmt.Errorf("read the pins: %w", err)
		}
		fmt.Fprintf(h, "%s %d\n", name, len(text))
		h.Write(text)
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}
