package program

import (
	"bytes"
	"context"
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

// Set is a directory of programs and what is to be in it. Its life is: Open looks at the pins, Missing at the directory, Build fills
// it. Nothing ever changes a program that is there, so a cluster that runs from a set is safe from later builds.
type Set struct {
	// Dir holds the programs. It is named by the pins, so a change of them is another directory.
	Dir     string
	recipes []Recipe
	layout  layout.Layout
}

// Open says which set the checkout's pins ask for. It builds nothing.
func Open(ctx context.Context, l layout.Layout) (Set, error) {
	version, err := KubernetesVersion(l.Kubernetes())
	if err != nil {
		return Set{}, err
	}
	compiler, err := goCommand(ctx, l.Source, "env", "GOVERSION").Output()
	if err != nil {
		return Set{}, fmt.Errorf("ask go for its version (Go 1.26 must be in PATH): %w", err)
	}
	recipes := Recipes(version)
	k, err := key(strings.TrimSpace(string(compiler)), recipes, l.Source, l.Kubernetes())
	if err != nil {
		return Set{}, err
	}
	return Set{Dir: filepath.Join(l.Cache, k, "bin"), recipes: recipes, layout: l}, nil
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

// Build builds what Missing has listed, one program after the other because they share most packages, and prints a line for each.
// A program appears under its name only when it is complete, so an interrupted build continues where it was.
func (s Set) Build(ctx context.Context, missing []Recipe, out io.Writer) error {
	start := time.Now()
	for i, r := range missing {
		fmt.Fprintf(out, "%7.1fs  [%d/%d] building %s\n", time.Since(start).Seconds(), i+1, len(missing), r.Output)
		stop := everyHeartbeat(func(d time.Duration) {
			fmt.Fprintf(out, "%7.1fs  [%d/%d] still building %s (%ds)\n",
				time.Since(start).Seconds(), i+1, len(missing), r.Output, int(d.Seconds()))
		})
		err := s.build(ctx, r)
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

// build passes on the end of the compiler's own words when it fails.
func (s Set) build(ctx context.Context, r Recipe) error {
	target := filepath.Join(s.Dir, r.Output)
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return fmt.Errorf("make the programs' directory: %w", err)
	}
	dir := s.layout.Source
	if r.Module == Kubernetes {
		dir = s.layout.Kubernetes()
	}
	partial := target + ".partial"
	cmd := goCommand(ctx, dir, "build", "-trimpath", "-buildvcs=false", "-tags", r.Tags, "-ldflags", r.LDFlags, "-o", partial, r.Package)
	cgo := "CGO_ENABLED=0"
	if r.Cgo {
		cgo = "CGO_ENABLED=1"
	}
	cmd.Env = append(cmd.Environ(), cgo)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", r.Output, err, tail(stderr.String(), 30))
	}
	if err := os.Rename(partial, target); err != nil {
		return fmt.Errorf("keep %s: %w", r.Output, err)
	}
	return nil
}

// goCommand runs go as the pins want it: a workspace around the checkout must not change them.
func goCommand(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off")
	return cmd
}

// everyHeartbeat calls say now and then until stop.
func everyHeartbeat(say func(time.Duration)) (stop func()) {
	start := time.Now()
	ticker := time.NewTicker(heartbeat)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				say(time.Since(start))
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
