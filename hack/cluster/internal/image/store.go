package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"istio-pod-network-controller/hack/cluster/internal/layout"
	"istio-pod-network-controller/hack/cluster/internal/program"
)

// Store is a directory of images, named by everything that they are made of: the sources of the own commands, the way they are
// packed, and the machine's programs that are copied. After an update of one of those, the next start packs new images.
type Store struct {
	layout layout.Layout
	// Dir holds NAME.tar for each image and bin/ with the commands that are in them.
	Dir string
}

// OpenStore says which images the checkout asks for. It makes none.
func OpenStore(l layout.Layout) (Store, error) {
	inputs := Inputs()
	for _, pattern := range []string{"go.mod", "go.sum", "internal/image/*.go"} {
		files, err := filepath.Glob(filepath.Join(l.Source, pattern))
		if err != nil {
			return Store{}, fmt.Errorf("list the images' sources: %w", err)
		}
		inputs = append(inputs, files...)
	}
	for _, command := range OwnCommands() {
		files, err := filepath.Glob(filepath.Join(l.Source, "cmd", command, "*.go"))
		if err != nil {
			return Store{}, fmt.Errorf("list the images' sources: %w", err)
		}
		inputs = append(inputs, files...)
	}
	// Changing a test must not make new images.
	inputs = slices.DeleteFunc(inputs, func(f string) bool { return strings.HasSuffix(f, "_test.go") })
	h := sha256.New()
	for _, file := range inputs {
		if err := hashFile(h, file); err != nil {
			return Store{}, err
		}
	}
	return Store{layout: l, Dir: filepath.Join(l.Cache, "images-"+hex.EncodeToString(h.Sum(nil))[:16])}, nil
}

// Bin holds testapp and testproxy, for use outside pods.
func (s Store) Bin() string { return filepath.Join(s.Dir, "bin") }

// Files lists the images of a store that Make has filled.
func (s Store) Files() ([]string, error) {
	files, err := filepath.Glob(filepath.Join(s.Dir, "*.tar"))
	if err != nil {
		return nil, fmt.Errorf("list the images: %w", err)
	}
	return files, nil
}

// Make builds the own commands and packs every image, unless that is done.
func (s Store) Make(ctx context.Context, out io.Writer) error {
	if _, err := os.Stat(filepath.Join(s.Dir, "complete")); err == nil {
		return nil
	}
	start := time.Now()
	for _, command := range OwnCommands() {
		if err := s.compile(ctx, command); err != nil {
			return err
		}
	}
	specs, err := Catalog(ctx, s.Bin())
	if err != nil {
		return err
	}
	for name, spec := range specs {
		if err := Write(filepath.Join(s.Dir, name+".tar"), spec); err != nil {
			return err
		}
		fmt.Fprintf(out, "%7.1fs  image %s\n", time.Since(start).Seconds(), spec.Tag)
	}
	if err := os.WriteFile(filepath.Join(s.Dir, "complete"), nil, 0o644); err != nil {
		return fmt.Errorf("mark the images as complete: %w", err)
	}
	return nil
}

// compile builds without cgo: the images hold no libraries for these. The cluster's programs share what they are compiled from.
func (s Store) compile(ctx context.Context, command string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-gcflags", program.Gcflags, "-ldflags", "-s -w",
		"-o", filepath.Join(s.Bin(), command), "./cmd/"+command)
	cmd.Dir = s.layout.Source
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", command, err, out)
	}
	return nil
}

// hashFile puts the name before the content, so that moving text between files counts as a change.
func hashFile(w io.Writer, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("read an image's source: %w", err)
	}
	defer f.Close()
	fmt.Fprintln(w, filepath.Base(file))
	if _, err := io.Copy(w, f); err != nil {
		return fmt.Errorf("read an image's source: %w", err)
	}
	return nil
}
