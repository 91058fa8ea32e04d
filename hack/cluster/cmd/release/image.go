package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"istio-pod-network-controller/hack/cluster/internal/image"
)

// release is what an image is labelled with.
type release struct {
	name, version, revision string
	at                      time.Time // of the commit
}

// writeImage writes an OCI layout, packed as a tar, of one index with an image for each directory of programs, which is named after an architecture.
func (r release) writeImage(file, programs string) (err error) {
	dirs, err := os.ReadDir(programs)
	if err != nil {
		return err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, d := range dirs {
		img, err := r.image(filepath.Join(programs, d.Name()))
		if err != nil {
			return fmt.Errorf("image for %s: %w", d.Name(), err)
		}
		platform := v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: d.Name()}}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: platform})
	}
	index = mutate.Annotations(index, r.labels()).(v1.ImageIndex)
	dir, err := os.MkdirTemp("", "release-image-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return fmt.Errorf("write the image: %w", err)
	}
	// A tag knows no +.
	named := layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": strings.ReplaceAll(r.version, "+", "-")})
	if err := path.AppendIndex(index, named); err != nil {
		return fmt.Errorf("write the image: %w", err)
	}
	return archive(file, dir, r.at)
}

// image is the same as `make image` makes: the programs for an architecture, all static, and nothing else.
func (r release) image(dir string) (v1.Image, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return nil, err
	}
	spec := image.Spec{Entrypoint: []string{"/" + r.name}, User: "0:0", Architecture: filepath.Base(dir), Created: r.at, Labels: r.labels()}
	for _, file := range files {
		if err := image.CheckStatic(file); err != nil {
			return nil, err
		}
		spec.Entries = append(spec.Entries, image.Entry{Path: "/" + filepath.Base(file), Source: file})
	}
	return image.OCI(spec)
}

// labels are OCI's own annotation keys.
func (r release) labels() map[string]string {
	const prefix = "org.opencontainers.image."
	return map[string]string{
		prefix + "title":    r.name,
		prefix + "version":  r.version,
		prefix + "revision": r.revision,
		prefix + "created":  r.at.UTC().Format(time.RFC3339),
		prefix + "licenses": "Apache-2.0",
	}
}
