package container

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// fakeCRI is a runtime that remembers containers, and fails where a test says so.
type fakeCRI struct {
	criv1.UnimplementedRuntimeServiceServer
	criv1.UnimplementedImageServiceServer

	sandbox *criv1.PodSandboxStatusResponse
	mu      sync.Mutex
	made    map[string]*criv1.CreateContainerRequest
	states  map[string]criv1.ContainerState
	pids    func() int // of running containers
	errors  map[string]error
	stopped []int64 // the time that each got
	pulls   []*criv1.AuthConfig
	accepts string // the user that may pull
	removed []string
	listed  map[string]string // the labels that were asked for last
	well    bool              // containers end with exit code 0 instead of 3
	crio    bool              // it answers as CRI-O does, see CreateContainer
	// making, if there is one, holds up CreateContainer until it is closed or the call ends. late are containers whose end only lists show.
	making chan struct{}
	late   map[string]bool
	// endsAtCreate has the sandbox end while a container is made.
	endsAtCreate bool
}

func (f *fakeCRI) PodSandboxStatus(_ context.Context, r *criv1.PodSandboxStatusRequest) (*criv1.PodSandboxStatusResponse, error) {
	if f.sandbox.GetStatus().GetId() != r.GetPodSandboxId() {
		return nil, status.Error(codes.NotFound, "no such sandbox")
	}
	return f.sandbox, f.errors["status"]
}

// CreateContainer refuses a second container of a name and attempt, as containerd does. CRI-O takes the second call for a repetition of the
// first: it returns the first one's container, once that is made.
func (f *fakeCRI) CreateContainer(ctx context.Context, r *criv1.CreateContainerRequest) (*criv1.CreateContainerResponse, error) {
	if f.making != nil {
		select {
		case <-f.making:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.endsAtCreate {
		f.sandbox.Status.State = criv1.PodSandboxState_SANDBOX_NOTREADY
	}
	if err := f.errors["create"]; err != nil {
		return nil, err
	}
	id := fmt.Sprintf("c%d", r.GetConfig().GetMetadata().GetAttempt())
	if _, there := f.states[id]; there && f.crio {
		return &criv1.CreateContainerResponse{ContainerId: id}, nil
	} else if there {
		return nil, status.Error(codes.Unknown, "the name is reserved")
	}
	f.made[id], f.states[id] = r, criv1.ContainerState_CONTAINER_CREATED
	return &criv1.CreateContainerResponse{ContainerId: id}, nil
}

func (f *fakeCRI) StartContainer(_ context.Context, r *criv1.StartContainerRequest) (*criv1.StartContainerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.errors["start"]; err != nil {
		return nil, err
	}
	if f.states[r.GetContainerId()] == criv1.ContainerState_CONTAINER_RUNNING {
		return nil, status.Error(codes.Unknown, "the container is running already")
	}
	f.states[r.GetContainerId()] = criv1.ContainerState_CONTAINER_RUNNING
	return &criv1.StartContainerResponse{}, nil
}

func (f *fakeCRI) StopContainer(_ context.Context, r *criv1.StopContainerRequest) (*criv1.StopContainerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.states[r.GetContainerId()]; !ok {
		return nil, status.Error(codes.NotFound, "no such container")
	}
	f.stopped = append(f.stopped, r.GetTimeout())
	f.states[r.GetContainerId()] = criv1.ContainerState_CONTAINER_EXITED
	return &criv1.StopContainerResponse{}, nil
}

func (f *fakeCRI) RemoveContainer(_ context.Context, r *criv1.RemoveContainerRequest) (*criv1.RemoveContainerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.states[r.GetContainerId()]; !ok {
		return nil, status.Error(codes.NotFound, "no such container")
	}
	delete(f.states, r.GetContainerId())
	f.removed = append(f.removed, r.GetContainerId())
	return &criv1.RemoveContainerResponse{}, nil
}

// ListContainers ignores the filter, as a runtime with another idea of labels might.
func (f *fakeCRI) ListContainers(_ context.Context, r *criv1.ListContainersRequest) (*criv1.ListContainersResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.listed = r.GetFilter().GetLabelSelector()
	out := &criv1.ListContainersResponse{Containers: []*criv1.Container{{Id: "the application's", Labels: map[string]string{labelPodUID: "u"}}}}
	for id, state := range f.states {
		r := f.made[id]
		image := r.GetConfig().GetImage()
		if f.crio {
			image = &criv1.ImageSpec{Image: "sha256:1"}
		}
		out.Containers = append(out.Containers, &criv1.Container{
			Id: id, PodSandboxId: r.GetPodSandboxId(), Metadata: r.GetConfig().GetMetadata(), Image: image,
			State: state, CreatedAt: 7, Labels: r.GetConfig().GetLabels(),
		})
	}
	return out, f.errors["list"]
}

func (f *fakeCRI) ContainerStatus(_ context.Context, r *criv1.ContainerStatusRequest) (*criv1.ContainerStatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	state, ok := f.states[r.GetContainerId()]
	if !ok {
		return nil, status.Error(codes.NotFound, "no such container")
	}
	code := int32(3)
	if f.well {
		code = 0
	}
	info, err := json.Marshal(map[string]any{"pid": f.pids()})
	out := &criv1.ContainerStatus{
		Id: r.GetContainerId(), State: state, ExitCode: code, Reason: "Error", FinishedAt: 9, LogPath: "/logs/0.log",
		Labels: f.made[r.GetContainerId()].GetConfig().GetLabels(),
	}
	if f.late[r.GetContainerId()] {
		out.ExitCode, out.Reason, out.FinishedAt = 0, "", 0
	}
	return &criv1.ContainerStatusResponse{Status: out, Info: map[string]string{"info": string(info)}}, err
}

func (f *fakeCRI) ImageStatus(_ context.Context, r *criv1.ImageStatusRequest) (*criv1.ImageStatusResponse, error) {
	if r.GetImage().GetImage() != "localhost/there:1" {
		return &criv1.ImageStatusResponse{}, f.errors["image"]
	}
	return &criv1.ImageStatusResponse{Image: &criv1.Image{Id: "sha256:1"}}, f.errors["image"]
}

func (f *fakeCRI) PullImage(_ context.Context, r *criv1.PullImageRequest) (*criv1.PullImageResponse, error) {
	f.pulls = append(f.pulls, r.GetAuth())
	if err := f.errors["pull"]; err != nil {
		return nil, err
	}
	if r.GetAuth().GetUsername() != f.accepts {
		return nil, status.Error(codes.Unknown, "401 unauthorized")
	}
	return &criv1.PullImageResponse{}, nil
}

// newFake returns a runtime with the recorded sandbox of containerd or crio, and a Runtime that talks to it.
func newFake(t *testing.T, recorded string) (*fakeCRI, *Runtime) {
	t.Helper()
	f := &fakeCRI{
		sandbox: &criv1.PodSandboxStatusResponse{}, made: map[string]*criv1.CreateContainerRequest{}, states: map[string]criv1.ContainerState{},
		pids: func() int { return 0 }, errors: map[string]error{},
	}
	text, err := os.ReadFile(filepath.Join("..", "cri", "testdata", recorded+"-PodSandboxStatus-verbose.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := protojson.Unmarshal(text, f.sandbox); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "cri.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	criv1.RegisterRuntimeServiceServer(server, f)
	criv1.RegisterImageServiceServer(server, f)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	r := New(conn, t.TempDir())
	f.logBelow(r.logRoot)
	return f, r
}

// logBelow has the sandbox's logs lie below another directory than the kubelet's.
func (f *fakeCRI) logBelow(root string) {
	m := f.sandbox.GetStatus().GetMetadata()
	dir := m.GetNamespace() + "_" + m.GetName() + "_" + m.GetUid()
	f.sandbox.Info["info"] = strings.ReplaceAll(f.sandbox.GetInfo()["info"], filepath.Join(DefaultLogRoot, dir), filepath.Join(root, dir))
}
