package agent

import (
	"bytes"
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// executor is a runtime in whose containers commands print the container and themselves.
type executor struct {
	criv1.UnimplementedRuntimeServiceServer

	containers []*criv1.Container
	fails      error
}

func (e *executor) Version(context.Context, *criv1.VersionRequest) (*criv1.VersionResponse, error) {
	return &criv1.VersionResponse{RuntimeName: "containerd", RuntimeApiVersion: "v1"}, nil
}

func (e *executor) ListContainers(context.Context, *criv1.ListContainersRequest) (*criv1.ListContainersResponse, error) {
	return &criv1.ListContainersResponse{Containers: e.containers}, nil
}

func (e *executor) ExecSync(_ context.Context, r *criv1.ExecSyncRequest) (*criv1.ExecSyncResponse, error) {
	return &criv1.ExecSyncResponse{Stdout: []byte(r.GetContainerId() + ": " + strings.Join(r.GetCmd(), " ")), Stderr: []byte("warned"), ExitCode: 7}, e.fails
}

func proxyContainer(id, pod string, epoch uint32, state criv1.ContainerState) *criv1.Container {
	return &criv1.Container{Id: id, Metadata: &criv1.ContainerMetadata{Attempt: epoch}, State: state, Labels: map[string]string{
		"pod-network-controller.istio.io/managed-proxy": "true", "io.kubernetes.pod.namespace": "shop", "io.kubernetes.pod.name": pod,
	}}
}

func TestACommandRunsInTheNewestProxy(t *testing.T) {
	const running, exited = criv1.ContainerState_CONTAINER_RUNNING, criv1.ContainerState_CONTAINER_EXITED
	e := &executor{containers: []*criv1.Container{
		proxyContainer("other", "cart-2", 9, running), proxyContainer("old", "cart-1", 2, running), proxyContainer("new", "cart-1", 3, running),
		proxyContainer("ended", "cart-1", 4, exited), proxyContainer("gone", "cart-3", 0, exited),
	}}
	socket := filepath.Join(t.TempDir(), "cri.sock")
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	criv1.RegisterRuntimeServiceServer(server, e)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	for name, c := range map[string]struct {
		pod   string
		fails error
		out   string
		want  string // of the error
	}{
		"the newest that runs":   {"cart-1", nil, "new: ls /run", ""},
		"one that has ended":     {"cart-3", nil, "", "no proxy of the pod shop/cart-3 runs on this node"},
		"none":                   {"cart", nil, "", "names the pod's node"},
		"what cannot be started": {"cart-1", grpcstatus.Error(codes.Unknown, "no such file"), "", "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			e.fails = c.fails
			var out, errOut bytes.Buffer
			code, err := SidecarExec{
				Runtime: "containerd", Endpoint: "unix://" + socket, Namespace: "shop", Pod: c.pod, Command: []string{"ls", "/run"}, Timeout: time.Second,
			}.Run(t.Context(), &out, &errOut)
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("error %v, want %q in it", err, c.want)
				}
				return
			}
			if err != nil || code != 7 || out.String() != c.out || errOut.String() != "warned" {
				t.Errorf("exit code %d, %q and %q, error %v", code, out.String(), errOut.String(), err)
			}
		})
	}
}
