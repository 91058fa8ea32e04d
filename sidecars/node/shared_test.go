package node

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	grpcstatus "google.golang.org/grpc/status"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"istio-pod-network-controller/runtime/container"
	"istio-pod-network-controller/sidecars/home"
)

// reaching returns what reaches the containers of a runtime.
func reaching(t *testing.T, e criv1.RuntimeServiceServer) *container.Runtime {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "cri.sock")
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	criv1.RegisterRuntimeServiceServer(server, e)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return container.New(conn, t.TempDir())
}

// A check is passed only by the code 0. One that the runtime has ended is told from one that it could not start.
func TestCheck_runtimeEndsIt_isTimeout(t *testing.T) {
	e := &executor{}
	c := sharedContainers{reaching(t, e), "agents"}
	output, ok, err := c.Check(t.Context(), "c1", []string{"check", "-c"})
	if err != nil || ok || output != "c1: check -cwarned" {
		t.Errorf("code 7: ok %v, output %q, error %v", ok, output, err)
	}
	for code, tooLong := range map[codes.Code]bool{codes.DeadlineExceeded: true, codes.Unavailable: false, codes.NotFound: false} {
		e.fails = grpcstatus.Error(code, "said by the runtime")
		_, ok, err = c.Check(t.Context(), "c1", []string{"check"})
		if ok || err == nil || !strings.Contains(err.Error(), "said by the runtime") || errors.Is(err, context.DeadlineExceeded) != tooLong {
			t.Errorf("%s: ok %v, error %v", code, ok, err)
		}
	}
	if got := lastOf(make([]byte, maxCheckOutput+1)); len(got) != maxCheckOutput {
		t.Errorf("%d bytes of the output are kept", len(got))
	}
}

// The configuration of shared proxies must not outlive a restart of the node: the sandboxes of pods do not.
func TestInMemory_diskDirectory_isRefused(t *testing.T) {
	if err := home.InMemory("/proc/self/nothing"); err == nil {
		t.Error("a directory that cannot be made is taken")
	}
	if err := home.InMemory("/proc"); err == nil || !strings.Contains(err.Error(), "/proc is not in memory") {
		t.Errorf("error %v", err)
	}
	dir, err := os.MkdirTemp("/dev/shm", "shared") //nolint:usetesting // a test's own directory is on a disk
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := errors.Join(os.Chmod(dir, 0o755), home.InMemory(dir)); err != nil { // as the kubelet makes it
		t.Errorf("error %v", err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, error %v: others may enter it", info.Mode(), err)
	}
}
