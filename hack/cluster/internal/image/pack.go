// Package image packs local files as container images, without a container engine and without a registry.
package image

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	goruntime "runtime"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Spec is an image of one layer.
type Spec struct {
	// Tag is the whole reference, such as localhost/pause:1. A tag other than latest makes the kubelet use what is loaded.
	Tag        string
	Entrypoint []string
	// User is "uid:gid"; empty is root.
	User string
	// StopSignal is what a runtime sends to end a container, such as SIGUSR1; empty is SIGTERM.
	StopSignal string
	Entries    []Entry
	// Architecture is Go's name of the programs'; empty is the machine's own.
	Architecture string
	// Created is what the image says about its age; the zero value is the epoch.
	Created time.Time
	Labels  map[string]string
}

// Write packs the image into file as a docker-archive, which containerd, CRI-O and Docker all load.
// Equal input gives equal bytes: times are those of the epoch and the order is by path.
func Write(file string, s Spec) error {
	tag, err := name.NewTag(s.Tag, name.StrictValidation)
	if err != nil {
		return fmt.Errorf("image tag %q: %w", s.Tag, err)
	}
	content, err := layerTar(s.Entries)
	if err != nil {
		return err
	}
	img, err := build(content, s, types.DockerLayer)
	if err != nil {
		return fmt.Errorf("build image %s: %w", s.Tag, err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("make the image's directory: %w", err)
	}
	// A reader finds a whole archive or none.
	partial := file + ".partial"
	if err := tarball.WriteToFile(partial, tag, img); err != nil {
		return fmt.Errorf("write image %s: %w", s.Tag, err)
	}
	if err := os.Rename(partial, file); err != nil {
		return fmt.Errorf("keep image %s: %w", s.Tag, err)
	}
	return nil
}

// NameIn is the name of the one image in a docker-archive.
func NameIn(file string) (string, error) {
	manifest, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(file) })
	if err != nil {
		return "", fmt.Errorf("read the archive, which must be a docker-archive: %w", err)
	}
	if len(manifest) != 1 || len(manifest[0].RepoTags) != 1 {
		return "", errors.New("the archive must hold one image with one name")
	}
	return manifest[0].RepoTags[0], nil
}

// OCI packs the image as registries have it, with OCI's media types. Tag is not used.
func OCI(s Spec) (v1.Image, error) {
	content, err := layerTar(s.Entries)
	if err != nil {
		return nil, err
	}
	img, err := build(content, s, types.OCILayer)
	if err != nil {
		return nil, fmt.Errorf("build image: %w", err)
	}
	return mutate.MediaType(mutate.ConfigMediaType(img, types.OCIConfigJSON), types.OCIManifestSchema1), nil
}

// build makes an image of one layer.
func build(content []byte, s Spec, kind types.MediaType) (v1.Image, error) {
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	}, tarball.WithMediaType(kind))
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, err
	}
	base, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config := base.DeepCopy()
	config.OS, config.Architecture = "linux", cmp.Or(s.Architecture, goruntime.GOARCH)
	config.Created = v1.Time{Time: time.Unix(0, 0).UTC()}
	if !s.Created.IsZero() {
		config.Created.Time = s.Created.UTC()
	}
	config.Config.Entrypoint, config.Config.StopSignal = s.Entrypoint, s.StopSignal
	config.Config.User = s.User
	config.Config.Labels = s.Labels
	config.Config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	return mutate.ConfigFile(img, config)
}
