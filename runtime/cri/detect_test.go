package cri

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// silent are endpoints that do not answer CRI, each with what the error must say of it.
func silent(t *testing.T) (endpoints, reasons []string) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "file.sock")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	withoutCRI := filepath.Join(dir, "other.sock")
	serveAt(t, withoutCRI, nil)
	hung := filepath.Join(dir, "hung.sock")
	serveAt(t, hung, &fakeRuntime{hangs: true})
	endpoints = []string{"unix://" + dir + "/missing.sock", file, withoutCRI, hung, "tcp://127.0.0.1:1"}
	reasons = []string{"no such file", "not a socket", "Unimplemented", "DeadlineExceeded", "want unix://"}
	return endpoints, reasons
}

func TestDetect_severalEndpoints_takesTheFirstAnswer(t *testing.T) {
	endpoints, _ := silent(t)
	first, second := "unix://"+serve(t, recorded(t, "crio")), "unix://"+serve(t, recorded(t, "containerd"))
	got, err := detect(t.Context(), append(endpoints, first, second), 100*time.Millisecond)
	if err != nil || got != first {
		t.Errorf("got %q, error %v, want %q", got, err, first)
	}
}

func TestDetect_noAnswer_namesEveryEndpoint(t *testing.T) {
	endpoints, reasons := silent(t)
	got, err := detect(t.Context(), endpoints, 100*time.Millisecond)
	if err == nil {
		t.Fatalf("got %q, want an error", got)
	}
	for i, endpoint := range endpoints {
		_, after, found := strings.Cut(err.Error(), "; "+endpoint+": ")
		if said, _, _ := strings.Cut(after, "; "); !found || !strings.Contains(said, reasons[i]) {
			t.Errorf("error says %q of %s, want %q", said, endpoint, reasons[i])
		}
	}
}

func TestDetect_contextEnds_returns(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := Detect(ctx, DefaultEndpoints()); !errors.Is(err, context.Canceled) {
		t.Errorf("got %q, error %v, want context.Canceled", got, err)
	}
}

func TestDefaultEndpoints_all_areValid(t *testing.T) {
	seen := map[string]bool{}
	for _, endpoint := range DefaultEndpoints() {
		path, err := socketPath(endpoint)
		if err != nil || seen[path] {
			t.Errorf("%s: error %v, seen before %t", endpoint, err, seen[path])
		}
		seen[path] = true
	}
}
