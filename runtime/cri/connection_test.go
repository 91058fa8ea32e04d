package cri

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"istio-pod-network-controller/internal/podnet"
)

func TestNew_wrongEndpoint_isRefused(t *testing.T) {
	tests := map[string]struct {
		in string
		ok bool
	}{
		"a URL":              {in: "unix:///run/containerd/containerd.sock", ok: true},
		"a path":             {in: "/run/containerd/containerd.sock", ok: true},
		"a path with spaces": {in: "/run/a b?c#d%/x.sock", ok: true},
		"nothing":            {in: ""},
		"a relative path":    {in: "run/containerd.sock"},
		"a relative URL":     {in: "unix://containerd.sock"},
		"another protocol":   {in: "tcp://127.0.0.1:1234"},
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
	for runtime, want := range map[string]string{"containerd": "containerd 2.4.2+unknown", "crio": "cri-o 1.37.0"} {
		t.Run(runtime, func(t *testing.T) {
			f := newFinder(t, serve(t, recorded(t, runtime)))
			got, err := f.Version(t.Context())
			if err != nil || got != want {
				t.Errorf("got %q, error %v, want %q", got, err, want)
			}
		})
	}
}

func TestFind_hungRuntime_endsWithTheDeadline(t *testing.T) {
	answersNothing := filepath.Join(t.TempDir(), "cri.sock")
	listener, err := net.Listen("unix", answersNothing)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	endpoints := map[string]string{
		"a call that does not return":     serve(t, &fakeRuntime{hangs: true}),
		"a socket that nobody reads from": answersNothing,
	}
	for name, endpoint := range endpoints {
		t.Run(name, func(t *testing.T) {
			f := newFinder(t, endpoint)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			_, err := f.Find(ctx, podnet.Sandbox{UID: podUID})
			if status.Code(err) != codes.DeadlineExceeded || errors.Is(err, podnet.ErrNotReady) {
				t.Errorf("got %v, want code DeadlineExceeded", err)
			}
		})
	}
}

func TestFind_runtimeStartsLater_works(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cri.sock")
	f := newFinder(t, path)
	_, err := f.Find(t.Context(), podnet.Sandbox{UID: podUID})
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), path) {
		t.Fatalf("got %v, want code Unavailable and the socket's path", err)
	}

	serveAt(t, path, recorded(t, "containerd"))
	ctx, cancel := context.WithTimeout(t.Context(), 3*maxReconnectDelay)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := f.Version(ctx)
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not reached after %s: %v", 3*maxReconnectDelay, err)
		}
	}
}

func TestFind_concurrentCalls_areSafe(t *testing.T) {
	f := newFinder(t, serve(t, recorded(t, "containerd")))
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			got, err := f.Find(t.Context(), podnet.Sandbox{UID: "cb8bef1c-6501-4aea-8bdd-f4f7ff377212"})
			if err != nil || got.NetNS == "" {
				t.Errorf("got %+v, error %v", got, err)
			}
		})
	}
	group.Wait()
}
