package release

import (
	"fmt"
	"io"
	"io/fs"
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

// ImageSuffix ends the name of the image's archive: an OCI layout, packed as a tar.
const ImageSuffix = "-image.oci.tar"

// writeImage writes one index with an image for each architecture.
func (r Release) writeImage(architectures []string) error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range architectures {
		img, err := r.image(arch)
		if err != nil {
			return fmt.Errorf("image for %s: %w", arch, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	annotated, ok := mutate.Annotations(index, r.labels()).(v1.ImageIndex)
	if !ok {
		return fmt.Errorf("annotate the image index: got %T", annotated)
	}
	dir, err := os.MkdirTemp("", "release-image-")
	if err != nil {
		return fmt.Errorf("make a directory for the image: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return fmt.Errorf("write the image: %w", err)
	}
	named := layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": r.ImageTag()})
	if err := path.AppendIndex(annotated, named); err != nil {
		return fmt.Errorf("write the image: %w", err)
	}
	entries, err := readDir(dir)
	if err != nil {
		return fmt.Errorf("read the image: %w", err)
	}
	return writeFile(filepath.Join(r.Output, r.Name+"-"+r.Version+ImageSuffix), func(to io.Writer) error { return writeTar(to, entries, r.Time) })
}

// ImageTag is the version as far as a tag can say it.
func (r Release) ImageTag() string { return strings.ReplaceAll(r.Version, "+", "-") }

// image is the same as `make image` makes: the programs, and nothing else.
func (r Release) image(arch string) (v1.Image, error) {
	programs, err := r.programs(arch)
	if err != nil {
		return nil, err
	}
	spec := image.Spec{
		Entrypoint: []string{"/" + r.Name}, User: "0:0",
		Architecture: arch, Created: r.Time, Labels: r.labels(),
	}
	for _, file := range programs {
		spec.Entries = append(spec.Entries, image.Entry{Path: "/" + filepath.Base(file), Source: file})
	}
	return image.OCI(spec)
}

// labels are OCI's own annotation keys.
func (r Release) labels() map[string]string {
	const prefix = "org.opencontainers.image."
	return map[string]string{
		prefix + "title":    r.Name,
		prefix + "version":  r.Version,
		prefix + "revision": r.Revision,
		prefix + "created":  r.Time.UTC().Format(time.RFC3339),
		prefix + "licenses": "Apache-2.0",
	}
}

// readDir returns the files of a directory.
func readDir(dir string) ([]entry, error) {
	var entries []entry
	in := os.DirFS(dir)
	err := fs.WalkDir(in, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := fs.ReadFile(in, path)
		entries = append(entries, entry{path, 0o644, content})
		return err
	})
	return entries, err
}
