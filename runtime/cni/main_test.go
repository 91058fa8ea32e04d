package cni

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"istio-pod-network-controller/internal/podnet"
)

// binDir is the runtime's directory of plugins for all tests of a run: ours, built as it is shipped, and this test program
// itself under the name of a plugin that makes networks.
const binDirKey = "CNI_TEST_BIN_DIR"

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "bridge" {
		os.Exit(bridge(os.Stdin, os.Stdout))
	}
	dir, err := os.MkdirTemp("", "cni-bin")
	if err == nil {
		err = fill(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_ = os.Setenv(binDirKey, dir)
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

func fill(dir string) error {
	if err := os.Chmod(dir, 0o755); err != nil { // other users are to try as well
		return err
	}
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", dir, "istio-pod-network-controller/cmd/"+PluginType)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the plugin: %w: %s", err, out)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return os.Symlink(self, filepath.Join(dir, "bridge"))
}

func program(name string) string { return filepath.Join(os.Getenv(binDirKey), name) }

// fakeAgent remembers requests and answers with err.
type fakeAgent struct {
	mu    sync.Mutex
	asked []string
	last  podnet.Sandbox
	err   error
	hold  chan struct{} // if not nil, requests wait until it is closed
}

func (a *fakeAgent) answer(ctx context.Context, what string, s podnet.Sandbox) error {
	a.mu.Lock()
	a.asked, a.last = append(a.asked, what), s
	a.mu.Unlock()
	if a.hold != nil {
		select {
		case <-a.hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return a.err
}

func (a *fakeAgent) Add(ctx context.Context, s podnet.Sandbox) error { return a.answer(ctx, "ADD", s) }

func (a *fakeAgent) Check(ctx context.Context, s podnet.Sandbox) error {
	return a.answer(ctx, "CHECK", s)
}

func (a *fakeAgent) Del(ctx context.Context, s podnet.Sandbox) error { return a.answer(ctx, "DEL", s) }

func (a *fakeAgent) ready(ctx context.Context) error {
	return a.answer(ctx, "STATUS", podnet.Sandbox{})
}

func (a *fakeAgent) requests() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.asked)
}

// serve runs a server for an agent until the test ends, and returns its socket's path.
func serve(tb testing.TB, a *fakeAgent, change ...func(*Server)) string {
	tb.Helper()
	socket := filepath.Join(tempDir(tb), "run", "cni.sock")
	start(tb, socket, a, change...)
	return socket
}

// start returns a function that stops the server.
func start(tb testing.TB, socket string, a *fakeAgent, change ...func(*Server)) (stop func()) {
	tb.Helper()
	s, err := NewServer(Config{Path: socket, Handler: a, Ready: a.ready, Log: discard()})
	if err != nil {
		tb.Fatal(err)
	}
	s.uid = uint32(os.Getuid())
	for _, f := range change {
		f(s)
	}
	before, _ := os.Lstat(socket)
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	done := make(chan error, 1)
	go func() { done <- s.Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			tb.Errorf("server: %v", err)
		}
	})
	tb.Cleanup(stop)
	eventually(tb, "the socket is there", func() bool {
		now, err := os.Lstat(socket)
		return err == nil && !os.SameFile(before, now)
	})
	return stop
}

// tempDir returns a directory whose path is short enough for a socket, whatever the test's name is.
func tempDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("", "cni") //nolint:usetesting // its names are too long
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func eventually(tb testing.TB, what string, condition func() bool) {
	tb.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-deadline:
			tb.Fatalf("waited in vain: %s", what)
		case <-tick.C:
		}
	}
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }
