package main

import (
	"bytes"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	helm "helm.sh/helm/v4/pkg/registry"
)

// Helm pulls from a registry what was in the archive, byte for byte.
func TestChart_inARegistry_isPulledByHelm(t *testing.T) {
	dir := t.TempDir()
	put(t, 0o600, "apiVersion: v2\nname: agent\nversion: 1.2.3-dev+abc\n", dir, "chart", "agent", "Chart.yaml")
	packed, file := filepath.Join(dir, "agent.tgz"), filepath.Join(dir, "chart.oci.tar")
	r := sample()
	if err := archive(packed, filepath.Join(dir, "chart"), r.at); err != nil {
		t.Fatal(err)
	}
	if err := r.writeChart(file, packed); err != nil {
		t.Fatal(err)
	}
	for _, e := range unpack(t, file) {
		put(t, 0o600, e.content, dir, "layout", e.path)
	}
	server := httptest.NewServer(registry.New())
	t.Cleanup(server.Close)
	repository := strings.TrimPrefix(server.URL, "http://") + "/charts/agent"
	top, err := layout.ImageIndexFromPath(filepath.Join(dir, "layout"))
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := top.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	img, err := top.Image(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	tag, err := name.ParseReference(repository + ":" + manifest.Manifests[0].Annotations["org.opencontainers.image.ref.name"])
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(tag, img); err != nil {
		t.Fatal(err)
	}
	client, err := helm.NewClient(helm.ClientOptPlainHTTP(), helm.ClientOptCredentialsFile(filepath.Join(dir, "none.json")))
	if err != nil {
		t.Fatal(err)
	}
	got, err := client.Pull(repository + ":" + r.version)
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(packed)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Chart.Data, want) || got.Chart.Meta.Name != "agent" || got.Chart.Meta.Version != r.version {
		t.Errorf("Helm has a chart %+v of %d bytes, want %d", got.Chart.Meta, len(got.Chart.Data), len(want))
	}
}

func TestChart_noChart_isRefused(t *testing.T) {
	dir := t.TempDir()
	put(t, 0o600, "text", dir, "no.tgz")
	put(t, 0o600, "name: agent", dir, "files", "Chart.yaml")
	if err := archive(filepath.Join(dir, "flat.tgz"), filepath.Join(dir, "files"), sample().at); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"no.tgz", "flat.tgz", "missing.tgz"} {
		if err := sample().writeChart(filepath.Join(dir, "out.tar"), filepath.Join(dir, file)); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: error %v", file, err)
		}
	}
}
