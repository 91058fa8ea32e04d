package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"istio-pod-network-controller/sidecars"
)

// readyPort is where the sample profile's proxy says that it is ready.
const readyPort = 15021

// proxyUser is the user of a profile's proxy that says nothing else.
const proxyUser = 1337

// containers are those that the agent makes in the runtime's sandboxes. Each answers in its sandbox's network namespace, and on the socket by
// which it hands over, as a HAProxy does that is ready. Its first process does nothing, and ends at once by the signal to drain.
type containers struct {
	criv1.UnimplementedImageServiceServer
	calls  atomic.Int64 // of CRI, of any kind
	asked  atomic.Int64 // questions whether a proxy is ready
	mu     sync.Mutex
	byID   map[string]*criv1.Container
	mounts map[string][]*criv1.Mount
	first  map[string]*exec.Cmd // by the ID of a container that runs
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
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, process := range c.first {
		err = errors.Join(err, process.Process.Kill())
	}
	return err
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
	r.containers.byID[c.Id], r.containers.mounts[c.Id] = c, config.GetMounts()
	return &criv1.CreateContainerResponse{ContainerId: c.Id}, nil
}

// StartContainer is CRI's.
func (r *containerRuntime) StartContainer(ctx context.Context, req *criv1.StartContainerRequest) (*criv1.StartContainerResponse, error) {
	r.containers.mu.Lock()
	defer r.containers.mu.Unlock()
	c := r.containers.byID[req.GetContainerId()]
	if c == nil {
		return nil, status.Error(codes.NotFound, "not found")
	}
	r.mu.Lock()
	s := r.sandboxes[c.GetPodSandboxId()]
	r.mu.Unlock()
	if err := s.answer(ctx, r.containers); err != nil {
		return nil, err
	}
	if err := r.containers.run(c); err != nil {
		return nil, err
	}
	c.State = criv1.ContainerState_CONTAINER_RUNNING
	return &criv1.StartContainerResponse{}, nil
}

// run starts a container's first process, and listens on its socket until that ends.
func (c *containers) run(of *criv1.Container) error {
	process := exec.Command("sleep", "infinity")
	var socket net.Listener
	for _, m := range c.mounts[of.GetId()] {
		if m.GetContainerPath() != sidecars.PathRun {
			continue
		}
		var err error
		if socket, err = listenIn(m.GetHostPath(), fmt.Sprintf("handover-%d.sock", of.GetMetadata().GetAttempt())); err != nil {
			return err
		}
		go accept(socket)
	}
	if err := process.Start(); err != nil {
		return err
	}
	c.first[of.GetId()] = process
	go func() {
		_ = process.Wait() // says how it ended
		if socket != nil {
			_ = socket.Close()
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.first, of.GetId())
		of.State = criv1.ContainerState_CONTAINER_EXITED
	}()
	return nil
}

// listenIn listens on a socket in a directory whose path may be too long for one.
func listenIn(dir, name string) (net.Listener, error) {
	opened, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer opened.Close() //nolint:errcheck // nothing was written
	l, err := net.Listen("unix", fmt.Sprintf("/proc/self/fd/%d/%s", opened.Fd(), name))
	if err == nil {
		l.(*net.UnixListener).SetUnlinkOnClose(false)
	}
	return l, err
}

// accept answers a question on each connection, as HAProxy does on its admin socket.
func accept(l net.Listener) {
	question := make([]byte, 64)
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		if _, err := conn.Read(question); err == nil {
			_, _ = conn.Write([]byte("\n"))
		}
		_ = conn.Close()
	}
}

// RemoveContainer is CRI's, of containers that do not run.
func (r *containerRuntime) RemoveContainer(_ context.Context, req *criv1.RemoveContainerRequest) (*criv1.RemoveContainerResponse, error) {
	r.containers.mu.Lock()
	defer r.containers.mu.Unlock()
	delete(r.containers.byID, req.GetContainerId())
	delete(r.containers.mounts, req.GetContainerId())
	return &criv1.RemoveContainerResponse{}, nil
}

// ContainerStatus is CRI's, always verbose.
func (r *containerRuntime) ContainerStatus(_ context.Context, req *criv1.ContainerStatusRequest) (*criv1.ContainerStatusResponse, error) {
	r.containers.mu.Lock()
	defer r.containers.mu.Unlock()
	c := r.containers.byID[req.GetContainerId()]
	if c == nil {
		return nil, status.Error(codes.NotFound, "not found")
	}
	pid := 0
	if process := r.containers.first[c.GetId()]; process != nil {
		pid = process.Process.Pid
	}
	return &criv1.ContainerStatusResponse{
		Status: &criv1.ContainerStatus{Id: c.GetId(), Metadata: c.GetMetadata(), State: c.GetState(), Labels: c.GetLabels()},
		Info:   map[string]string{"info": `{"pid":` + strconv.Itoa(pid) + `}`},
	}, nil
}

// answer serves, in the sandbox's network namespace, what asks whether its proxy is ready. Its proxies share that.
func (s *sandbox) answer(ctx context.Context, c *containers) error {
	if s.answers {
		return nil
	}
	if err := s.up(); err != nil {
		return err
	}
	config := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) (err error) {
		failed := conn.Control(func(fd uintptr) { err = unix.Fchown(int(fd), proxyUser, proxyUser) })
		return errors.Join(failed, err)
	}}
	config.SetMultipathTCP(false) // whose listener the kernel makes as this program's user
	var listener net.Listener
	err := s.mounted.Inside(func() (err error) {
		listener, err = config.Listen(ctx, "tcp4", fmt.Sprintf("127.0.0.1:%d", readyPort))
		return err
	})
	if err != nil {
		return err
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { c.asked.Add(1) })}
	go func() { _ = server.Serve(listener) }()
	c.closed, s.answers = append(c.closed, server.Close), true
	return nil
}

// up brings the sandbox's loopback interface up.
func (s *sandbox) up() error {
	text, err := exec.Command("nsenter", "--net="+s.netns, "ip", "link", "set", "lo", "up").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, text)
	}
	return nil
}
