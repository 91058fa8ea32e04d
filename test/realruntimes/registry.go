package realruntimes

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"
)

// The types of what a registry serves.
const (
	typeManifest = "application/vnd.docker.distribution.manifest.v2+json"
	typeConfig   = "application/vnd.docker.container.image.v1+json"
	typeLayer    = "application/vnd.docker.image.rootfs.diff.tar.gzip"
)

// Registry serves images by plain HTTP at an address of loopback, which runtimes pull from without being told that it is safe.
type Registry struct {
	Host    string            // of the images' names
	content map[string][]byte // manifests by NAME:TAG, and everything by digest
	types   map[string]string // of manifests and blobs, by the same
}

// ServeRegistry starts a registry without images.
func ServeRegistry(t *testing.T) *Registry {
	t.Helper()
	loopback(t)
	r := &Registry{content: map[string][]byte{}, types: map[string]string{}}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	r.Host = strings.TrimPrefix(server.URL, "http://")
	return r
}

// ServeHTTP answers for manifests and blobs. A pull asks for nothing else.
func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	name, reference, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, "/v2/"), "/manifests/")
	if _, digest, isBlob := strings.Cut(req.URL.Path, "/blobs/"); isBlob {
		reference = digest
	}
	key := reference
	if !strings.HasPrefix(reference, "sha256:") {
		key = name + ":" + reference
	}
	content, there := r.content[key]
	switch {
	case req.URL.Path == "/v2/":
	case !there:
		http.NotFound(w, req)
	default:
		w.Header().Set("Content-Type", r.types[key])
		w.Header().Set("Docker-Content-Digest", digestOf(content))
		http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(content))
	}
}

// Add puts the one image of a docker-archive into the registry, as `kc images` packs it, with the arguments that its containers get, and returns its name.
// All images are added before the first is pulled.
func (r *Registry) Add(t *testing.T, archive, name string, arguments ...string) (image string) {
	t.Helper()
	files := readArchive(t, archive)
	var index []struct {
		Config string
		Layers []string
	}
	if err := json.Unmarshal(files["manifest.json"], &index); err != nil || len(index) != 1 {
		t.Fatalf("%s has %d images, error %v", archive, len(index), err)
	}
	var config map[string]any
	if err := json.Unmarshal(files[index[0].Config], &config); err != nil {
		t.Fatal(err)
	}
	settings, _ := config["config"].(map[string]any)
	maps.Copy(settings, map[string]any{"Cmd": arguments})
	layers := make([]any, 0, 1)
	for _, file := range index[0].Layers {
		layers = append(layers, r.put(typeLayer, files[file]))
	}
	manifest := marshal(t, map[string]any{
		"schemaVersion": 2, "mediaType": typeManifest, "config": r.put(typeConfig, marshal(t, config)), "layers": layers,
	})
	r.put(typeManifest, manifest)
	r.content[name+":1"], r.types[name+":1"] = manifest, typeManifest
	return r.Host + "/" + name + ":1"
}

// put keeps content by its digest, and describes it.
func (r *Registry) put(mediaType string, content []byte) map[string]any {
	digest := digestOf(content)
	r.content[digest], r.types[digest] = content, mediaType
	return map[string]any{"mediaType": mediaType, "digest": digest, "size": len(content)}
}

func digestOf(content []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(content)) }

func marshal(t *testing.T, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func readArchive(t *testing.T, archive string) map[string][]byte {
	t.Helper()
	file, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() //nolint:errcheck // only read
	files := map[string][]byte{}
	for in := tar.NewReader(file); ; {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err == nil {
			files[header.Name], err = io.ReadAll(in)
		}
		if err != nil {
			t.Fatalf("read %s: %v", archive, err)
		}
	}
}
