package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// readyPort is where the sample profile's proxy says that it is ready.
const readyPort = 15021

// containers are those that the agent makes in the runtime's sandboxes. Each answers in its sandbox's network namespace as a proxy does that
// is ready; one process of the machine, which does nothing, stands for the first process of all.
type containers struct {
	criv1.UnimplementedImageServiceServer
	calls  atomic.Int64 // of CRI, of any kind
	asked  atomic.Int64 // questions whether a proxy is ready
	idle   *process
	mu     sync.Mutex
	byID   map[string]*criv1.Container
	closed []func() error
}

// count is a gRPC interceptor.
func (c *containers) count(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	c.calls.Add(1)
	return handle(ctx, req)
}

func (c *containers) stop() (err error) {
	for _, f := range c.closed {
		err = errors.Join(err, f())
	}
	return errors.Join(err, c.idle.stop(unix.SIGKILL))
}

// ImageStatus is CRI's. There is every image.
func (c *containers) ImageStatus(_ context.Context, req *criv1.ImageStatusRequest) (*criv1.ImageStatusResponse, error) {
	return &criv1.ImageStatusResponse{Image: &criv1.Image{Id: hexID(req.GetImage().GetImage())}}, nil
}

// ListContainers is CRI's. Of a filter only the pod counts: all containers are the agent's.
func (r *containerRuntime) ListContainers(_ context.Context, req *criv1.ListContainersRequest) (*criv1.ListContainersResponse, error) {
	wanted := req.GetFilter().GetLabelSelector()[labelPodUID]
	r.containers.mu.Lock()
	defer r.containers.mu.Unlock()
	out := &criv1.ListContainersResponse{}
	for _, c := range r.containers.byID {
		if wanted == "" || wanted == c.GetLabels()[labelPodUID] {
			out.Containers = append(out.Containers, c)
		}
	}
	return out, nil
}

// CreateContainer is CRI's.
func (r *containerRuntime) CreateContainer(_ context.Context, req *criv1.CreateContainerRequest) (*criv1.CreateContainerResponse, error) {
	config := req.GetConfig()
	c := &criv1.Container{
		Id: hexID(req.GetPodSandboxId() + config.GetLogPath()), PodSandboxId: req.GetPodSandboxId(), Metadata: config.GetMetadata(), Image: config.GetImage(),
		Labels: config.GetLabels(), Annotations: config.GetAnnotations(), CreatedAt: time.Now().UnixNano(), State: criv1.ContainerState_CONTAINER_CREATED,
	}
	r.containers.mu.Lock()
	defer r.containers.mu.Unlock()
	r.containers.byID[c.Id] = c
	return &criv1.CreateContainerResponse{ContainerId: c.Id}, nil
}

// StartContainer is CRI's.
func (r *containerRuntime) StartContainer(_ context.Context, req *criv1.StartContainerRequest) (*criv1.StartContainerResponse, error) {
	r.containers.mu.Lock()
	defer r.containers.mu.Unlock()
	c := r.containers.byID[req.GetContainerId()]
	if c == nil {
		return nil, status.Error(codes.NotFound, "not found")
	}
	r.mu.Lock()
	s := r.sandboxes[c.GetPodSandboxId()]
	r.mu.Unlock()
	stop, err := s.answer(&r.containers.asked)
	if err != nil {
		return nil, err
	}
	r.containers.closed = append(r.containers.closed, stop)
	c.State = criv1.ContainerState_CONTAINER_RUNNING
	return &criv1.StartContainerResponse{}, nil
}

// ContainerStatus is CRI's, always verbose.
func (r *containerRuntime) ContainerStatus(_ context.Context, req *criv1.ContainerStatusRequest) (*criv1.ContainerStatusResponse, error) {
	r.containers.mu.Lock()
	defer r.containers.mu.Unlock()
	c := r.containers.byID[req.GetContainerId()]
	if c == nil {
		return nil, status.Error(codes.NotFound, "not found")
	}
	return &criv1.ContainerStatusResponse{
		Status: &criv1.ContainerStatus{Id: c.GetId(), Metadata: c.GetMetadata(), State: c.GetState(), Labels: c.GetLabels()},
		Info:   map[string]string{"info": `{"pid":` + strconv.Itoa(r.containers.idle.cmd.Process.Pid) + `}`},
	}, nil
}

// answer serves, in the sandbox's network namespace, what asks whether its proxy is ready.
func (s *sandbox) answer(asked *atomic.Int64) (stop func() error, err error) {
	if err := s.up(); err != nil {
		return nil, err
	}
	var listener net.Listener
	err = s.mounted.Do(func() (err error) {
		listener, err = net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", readyPort)) //nolint:noctx // an address of its own does not block
		return err
	})
	if err != nil {
		return nil, err
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) })}
	go func() { _ = server.Serve(listener) }()
	return server.Close, nil
}

// up brings the sandbox's loopback interface up.
func (s *sandbox) up() error {
	text, err := exec.Command("nsenter", "--net="+s.netns, "ip", "link", "set", "lo", "up").CombinedOutput() //nolint:noctx // it ends at once
	if err != nil {
		return fmt.Errorf("%w: %s", err, text)
	}
	return nil
}
