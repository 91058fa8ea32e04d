package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	helm "helm.sh/helm/v4/pkg/registry"
)

// writeChart writes an OCI layout, packed as a tar, of a packed chart, as Helm pushes it: into a registry in this process.
func (r release) writeChart(file, chart string) (err error) {
	content, err := os.ReadFile(chart)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "release-chart-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	server := httptest.NewServer(registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo))))
	defer server.Close()
	repository, tag := strings.TrimPrefix(server.URL, "http://")+"/"+r.name, strings.ReplaceAll(r.version, "+", "_") // as Helm does
	client, err := helm.NewClient(helm.ClientOptPlainHTTP(), helm.ClientOptWriter(io.Discard), helm.ClientOptCredentialsFile(dir+"/none"))
	if err == nil {
		_, err = client.Push(content, repository+":"+r.version, helm.PushOptCreationTime(r.at.UTC().Format(time.RFC3339)))
	}
	if err != nil {
		return fmt.Errorf("push %s: %w", chart, err)
	}
	ref, err := name.ParseReference(repository + ":" + tag)
	if err != nil {
		return err
	}
	img, err := remote.Image(ref)
	if err != nil {
		return err
	}
	path, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = path.AppendImage(img, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": tag}))
	}
	if err != nil {
		return err
	}
	return archive(file, dir, r.at)
}
