package cri

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// fakeRuntime answers as the runtimes do: lists are filtered, an unknown sandbox is NotFound, info comes only if asked.
type fakeRuntime struct {
	criv1.UnimplementedRuntimeServiceServer
	version       *criv1.VersionResponse
	sandboxes     []*criv1.PodSandbox
	statuses      map[string]*criv1.PodSandboxStatusResponse
	containers    []*criv1.Container
	started       map[string]int64 // by ID, in nanoseconds; a container without one was removed
	ignoresFilter bool
	hangs         bool
}

func (r *fakeRuntime) Version(ctx context.Context, _ *criv1.VersionRequest) (*criv1.VersionResponse, error) {
	return r.version, r.wait(ctx)
}

func (r *fakeRuntime) ListPodSandbox(ctx context.Context, req *criv1.ListPodSandboxRequest) (*criv1.ListPodSandboxResponse, error) {
	var items []*criv1.PodSandbox
	for _, s := range r.sandboxes {
		if r.ignoresFilter || selects(req.GetFilter(), s) {
			items = append(items, s)
		}
	}
	return &criv1.ListPodSandboxResponse{Items: items}, r.wait(ctx)
}

func (r *fakeRuntime) PodSandboxStatus(ctx context.Context, req *criv1.PodSandboxStatusRequest) (*criv1.PodSandboxStatusResponse, error) {
	resp, ok := r.statuses[req.GetPodSandboxId()]
	if !ok {
		return nil, status.Error(codes.NotFound, "an error occurred when try to find sandbox: not found")
	}
	if !req.GetVerbose() {
		resp = &criv1.PodSandboxStatusResponse{Status: resp.GetStatus()}
	}
	return resp, r.wait(ctx)
}

func (r *fakeRuntime) ListContainers(ctx context.Context, req *criv1.ListContainersRequest) (*criv1.ListContainersResponse, error) {
	out := &criv1.ListContainersResponse{}
	for _, c := range r.containers {
		if r.ignoresFilter || c.GetPodSandboxId() == req.GetFilter().GetPodSandboxId() {
			out.Containers = append(out.Containers, c)
		}
	}
	return out, r.wait(ctx)
}

func (r *fakeRuntime) ContainerStatus(ctx context.Context, req *criv1.ContainerStatusRequest) (*criv1.ContainerStatusResponse, error) {
	at, ok := r.started[req.GetContainerId()]
	if !ok {
		return nil, status.Error(codes.NotFound, "an error occurred when try to find container: not found")
	}
	return &criv1.ContainerStatusResponse{Status: &criv1.ContainerStatus{StartedAt: at}}, r.wait(ctx)
}

func (r *fakeRuntime) wait(ctx context.Context) error {
	if r.hangs {
		<-ctx.Done()
	}
	return ctx.Err()
}

func selects(f *criv1.PodSandboxFilter, s *criv1.PodSandbox) bool {
	for key, value := range f.GetLabelSelector() {
		if s.GetLabels()[key] != value {
			return false
		}
	}
	return f.GetState() == nil || f.GetState().GetState() == s.GetState()
}

// serve starts the runtime on a socket of the test and returns the socket's path.
func serve(tb testing.TB, r criv1.RuntimeServiceServer) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "cri.sock")
	serveAt(tb, path, r)
	return path
}

func serveAt(tb testing.TB, path string, r criv1.RuntimeServiceServer) {
	tb.Helper()
	listener, err := net.Listen("unix", path)
	if err != nil {
		tb.Fatal(err)
	}
	server := grpc.NewServer()
	if r != nil {
		criv1.RegisterRuntimeServiceServer(server, r)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	tb.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			tb.Error(err)
		}
	})
}

// newFinder makes a Finder that is closed with the test.
func newFinder(tb testing.TB, endpoint string) *Finder {
	tb.Helper()
	f, err := New(endpoint)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := f.Close(); err != nil {
			tb.Error(err)
		}
	})
	return f
}

// recorded is a runtime that gives the recorded answers of the named one.
func recorded(tb testing.TB, name string) *fakeRuntime {
	tb.Helper()
	version, list, status := &criv1.VersionResponse{}, &criv1.ListPodSandboxResponse{}, &criv1.PodSandboxStatusResponse{}
	readAnswer(tb, name+"-Version.json", version)
	readAnswer(tb, name+"-ListPodSandbox.json", list)
	readAnswer(tb, name+"-PodSandboxStatus-verbose.json", status)
	return &fakeRuntime{
		version:   version,
		sandboxes: list.GetItems(),
		statuses:  map[string]*criv1.PodSandboxStatusResponse{status.GetStatus().GetId(): status},
	}
}

func readAnswer(tb testing.TB, file string, into proto.Message) {
	tb.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		tb.Fatal(err)
	}
	if err := protojson.Unmarshal(text, into); err != nil {
		tb.Fatalf("decode %s: %v", file, err)
	}
}
