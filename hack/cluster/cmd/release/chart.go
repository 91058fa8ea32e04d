package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"sigs.k8s.io/yaml"
)

// Helm's media types: https://helm.sh/docs/topics/registries/#helm-chart-manifest
const (
	chartConfig  types.MediaType = "application/vnd.cncf.helm.config.v1+json"
	chartContent types.MediaType = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
)

// writeChart writes an OCI layout, packed as a tar, of a packed chart, as `helm push` would put it into a registry.
func (r release) writeChart(file, chart string) (err error) {
	content, err := os.ReadFile(chart)
	if err != nil {
		return err
	}
	about, err := metadata(content)
	if err != nil {
		return fmt.Errorf("%s: %w", chart, err)
	}
	dir, err := os.MkdirTemp("", "release-chart-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	manifest := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Annotations: r.labels()}
	config, errConfig := blob(dir, chartConfig, about)
	layer, errLayer := blob(dir, chartContent, content)
	if err := errors.Join(errConfig, errLayer); err != nil {
		return err
	}
	manifest.Config, manifest.Layers = config, []v1.Descriptor{layer}
	text, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	top, err := blob(dir, types.OCIManifestSchema1, text)
	if err != nil {
		return err
	}
	top.Annotations = map[string]string{"org.opencontainers.image.ref.name": strings.ReplaceAll(r.version, "+", "_")} // as Helm does
	index, err := json.Marshal(v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{top}})
	if err == nil {
		err = errors.Join(os.WriteFile(filepath.Join(dir, "index.json"), index, 0o600),
			os.WriteFile(filepath.Join(dir, "oci-layout"), []byte(`{"imageLayoutVersion": "1.0.0"}`), 0o600))
	}
	if err != nil {
		return err
	}
	return archive(file, dir, r.at)
}

// blob writes content to a layout.
func blob(dir string, kind types.MediaType, content []byte) (v1.Descriptor, error) {
	hash, size, err := v1.SHA256(bytes.NewReader(content))
	if err != nil {
		return v1.Descriptor{}, err
	}
	file := filepath.Join(dir, "blobs", hash.Algorithm, hash.Hex)
	return v1.Descriptor{MediaType: kind, Size: size, Digest: hash}, errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, content, 0o600))
}

// metadata returns a packed chart's Chart.yaml as JSON.
func metadata(chart []byte) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(chart))
	if err != nil {
		return nil, err
	}
	for files := tar.NewReader(z); ; {
		h, err := files.Next()
		if err != nil {
			return nil, fmt.Errorf("find Chart.yaml: %w", err)
		}
		if ok, _ := path.Match("*/Chart.yaml", h.Name); ok {
			text, err := io.ReadAll(files)
			if err != nil {
				return nil, err
			}
			return yaml.YAMLToJSON(text)
		}
	}
}
