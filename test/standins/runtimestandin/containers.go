package runtimestandin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"istio-pod-network-controller/sidecars/profile"
)

const (
	readyPort = 15021 // where the sample profile's proxy says that it is ready
	proxyUser = 1337  // of a profile's proxy that says nothing else
)

// container is one that the agent makes in a sandbox. It answers in the sandbox's network namespace, and on the socket by which it hands over, as a
// HAProxy does that is ready. Its first process does nothing, and ends at once by the signal to drain.
type container struct {
	*criv1.Container
	mounts []*criv1.Mount
	first  *exec.Cmd // while it runs
}

// ImageStatus is CRI's. There is every image.
func (*Runtime) ImageStatus(_ context.Context, req *criv1.ImageStatusRequest) (*criv1.ImageStatusResponse, error) {
	return &criv1.ImageStatusResponse{Image: &criv1.Image{Id: HexID(req.GetImage().GetImage())}}, nil
}

// ListContainers is CRI's. Of a filter only the pod counts: all containers are the agent's.
func (r *Runtime) ListContainers(_ context.Context, req *criv1.ListContainersRequest) (*criv1.ListContainersResponse, error) {
	wanted := req.GetFilter().GetLabelSelector()[labelPodUID]
	r.mu.Lock()
	defer r.mu.Unlock()
	out := &criv1.ListContainersResponse{}
	for _, c := range r.containers {
		if wanted == "" || wanted == c.GetLabels()[labelPodUID] {
			out.Containers = append(out.Containers, c.Container)
		}
	}
	return out, nil
}

// CreateContainer is CRI's.
func (r *Runtime) CreateContainer(_ context.Context, req *criv1.CreateContainerRequest) (*criv1.CreateContainerResponse, error) {
	config := req.GetConfig()
	c := &criv1.Container{
		Id: HexID(req.GetPodSandboxId() + config.GetLogPath()), PodSandboxId: req.GetPodSandboxId(), Metadata: config.GetMetadata(), Image: config.GetImage(),
		Labels: config.GetLabels(), Annotations: config.GetAnnotations(), CreatedAt: time.Now().UnixNano(), State: criv1.ContainerState_CONTAINER_CREATED,
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.containers[c.Id] = &container{Container: c, mounts: config.GetMounts()}
	return &criv1.CreateContainerResponse{ContainerId: c.Id}, nil
}

// StartContainer is CRI's.
func (r *Runtime) StartContainer(ctx context.Context, req *criv1.StartContainerRequest) (*criv1.StartContainerResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[req.GetContainerId()]
	if c == nil {
		return nil, status.Error(codes.NotFound, "not found")
	}
	if err := r.answer(ctx, r.sandboxes[c.GetPodSandboxId()]); err != nil {
		return nil, err
	}
	if err := r.start(c); err != nil {
		return nil, err
	}
	c.State = criv1.ContainerState_CONTAINER_RUNNING
	return &criv1.StartContainerResponse{}, nil
}

// start starts a container's first process, and listens on its socket until that ends.
func (r *Runtime) start(c *container) error {
	var socket net.Listener
	for _, m := range c.mounts {
		if m.GetContainerPath() != profile.PathRun {
			continue
		}
		var err error
		if socket, err = listenIn(m.GetHostPath(), fmt.Sprintf("handover-%d.sock", c.GetMetadata().GetAttempt())); err != nil {
			return err
		}
		go accept(socket)
	}
	first := exec.Command("sleep", "infinity")
	if err := first.Start(); err != nil {
		return err
	}
	c.first = first
	go func() {
		_ = first.Wait() // says how it ended
		if socket != nil {
			_ = socket.Close()
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		c.first, c.State = nil, criv1.ContainerState_CONTAINER_EXITED
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
func (r *Runtime) RemoveContainer(_ context.Context, req *criv1.RemoveContainerRequest) (*criv1.RemoveContainerResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.containers, req.GetContainerId())
	return &criv1.RemoveContainerResponse{}, nil
}

// ContainerStatus is CRI's, always verbose.
func (r *Runtime) ContainerStatus(_ context.Context, req *criv1.ContainerStatusRequest) (*criv1.ContainerStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[req.GetContainerId()]
	if c == nil {
		return nil, status.Error(codes.NotFound, "not found")
	}
	pid := 0
	if c.first != nil {
		pid = c.first.Process.Pid
	}
	return &criv1.ContainerStatusResponse{
		Status: &criv1.ContainerStatus{Id: c.GetId(), Metadata: c.GetMetadata(), State: c.GetState(), Labels: c.GetLabels()},
		Info:   map[string]string{"info": fmt.Sprintf(`{"pid": %d}`, pid)},
	}, nil
}

// answer serves, in a sandbox's network namespace, what asks whether its proxy is ready. Its proxies share that.
func (r *Runtime) answer(ctx context.Context, s *sandbox) error {
	if s.answers {
		return nil
	}
	if text, err := exec.CommandContext(ctx, "nsenter", "--net="+s.netns, "ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, text)
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
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	go func() { _ = server.Serve(listener) }()
	r.closed, s.answers = append(r.closed, server.Close), true
	return nil
}

// Versions returns how many containers there are, and how many of them are the first of their sandbox.
func (r *Runtime) Versions() (first, all int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.containers {
		if one.GetMetadata().GetAttempt() == 0 {
			first++
		}
	}
	return first, len(r.containers)
}
