package image

import (
	"path/filepath"
	"testing"

	"istio-pod-network-controller/hack/cluster/internal/layout"
	"istio-pod-network-controller/test/kerneltest"
)

func TestStoreIsNamedByTheSourcesButNotTheirTests(t *testing.T) {
	for _, file := range Inputs() {
		kerneltest.File(t, file)
	}
	source := t.TempDir()
	main := filepath.Join(source, "cmd", "pause", "main.go")
	writeFileMode(t, main, "package main", 0o600)
	first := openStore(t, source)
	writeFileMode(t, filepath.Join(source, "cmd", "pause", "main_test.go"), "package main", 0o600)
	if got := openStore(t, source); got != first {
		t.Error("a test changes the images")
	}
	writeFileMode(t, main, "package main // changed", 0o600)
	if got := openStore(t, source); got == first {
		t.Error("a change of the source leaves the images")
	}
}

func openStore(t *testing.T, source string) (dir string) {
	t.Helper()
	store, err := OpenStore(layout.Layout{Source: source, Cache: "/cache"})
	if err != nil {
		t.Fatal(err)
	}
	return store.Dir
}
