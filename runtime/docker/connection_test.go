package docker

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"istio-pod-network-controller/internal/podnet"
)

func TestNew_wrongEndpoint_isRefused(t *testing.T) {
	tests := map[string]struct {
		in string
		ok bool
	}{
		"a URL":            {in: "unix:///var/run/docker.sock", ok: true},
		"a path":           {in: "/var/run/docker.sock", ok: true},
		"nothing":          {in: "", ok: true},
		"a relative path":  {in: "docker.sock"},
		"a relative URL":   {in: "unix://docker.sock"},
		"another machine":  {in: "tcp://127.0.0.1:2375"},
		"a path too long":  {in: "/" + strings.Repeat("x", 200)},
		"another protocol": {in: "ssh://host"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f, err := New(tt.in)
			if (err == nil) != tt.ok {
				t.Fatalf("New: %v, want success %t", err, tt.ok)
			}
			if err != nil {
				return
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestVersion(t *testing.T) {
	f := newFinder(t, serve(t, recorded(t)))
	got, err := f.Version(t.Context())
	if want := "docker 20.10.24+dfsg1"; err != nil || got != want {
		t.Errorf("got %q, error %v, want %q", got, err, want)
	}
}

func TestFind_engineTooOld_isNamed(t *testing.T) {
	f := newFinder(t, serve(t, &fakeEngine{apiVersion: "1.38"}))
	_, err := f.Find(t.Context(), podnet.Sandbox{UID: podUID})
	if err == nil || errors.Is(err, podnet.ErrNotReady) || !strings.Contains(err.Error(), "API version 1.38 is not supported") {
		t.Errorf("got %v, want an error that names the API version", err)
	}
}

func TestFind_hungEngine_endsWithTheDeadline(t *testing.T) {
	answersNothing := filepath.Join(t.TempDir(), "docker.sock")
	listener, err := net.Listen("unix", answersNothing)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	endpoints := map[string]string{
		"a call that does not return":     serve(t, &fakeEngine{hangs: true}),
		"a socket that nobody reads from": answersNothing,
	}
	for name, endpoint := range endpoints {
		t.Run(name, func(t *testing.T) {
			f := newFinder(t, endpoint)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			_, err := f.Find(ctx, podnet.Sandbox{UID: podUID})
			if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, podnet.ErrNotReady) {
				t.Errorf("got %v, want context.DeadlineExceeded", err)
			}
		})
	}
}

func TestFind_engineStartsLater_works(t *testing.T) {
	path := filepath.Join(t.TempDir(), "docker.sock")
	f := newFinder(t, path)
	_, err := f.Find(t.Context(), podnet.Sandbox{UID: recordedUID})
	if err == nil || errors.Is(err, podnet.ErrNotReady) || !strings.Contains(err.Error(), path) {
		t.Fatalf("got %v, want an error with the socket's path", err)
	}
	serveAt(t, path, recorded(t))
	if got, err := f.Find(t.Context(), podnet.Sandbox{UID: recordedUID}); err != nil || got.ID != recordedID {
		t.Errorf("got %+v, error %v", got, err)
	}
}

func TestFind_concurrentCalls_areSafe(t *testing.T) {
	f := newFinder(t, serve(t, recorded(t)))
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			got, err := f.Find(t.Context(), podnet.Sandbox{UID: recordedUID})
			if err != nil || got.NetNS == "" {
				t.Errorf("got %+v, error %v", got, err)
			}
		})
	}
	group.Wait()
}
