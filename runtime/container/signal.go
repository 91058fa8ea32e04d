package container

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"istio-pod-network-controller/internal/sidecar"
)

// Signal sends a signal to a container's first process. It needs the node's process IDs (hostPID) and the capability KILL. It changes
// nothing in the runtime, so it may be called while the runtime waits for an answer over NRI. The error is sidecar.ErrGone if the container
// does not run.
func (r *Runtime) Signal(ctx context.Context, id string, signal unix.Signal) error {
	process, err := r.open(ctx, id)
	if err != nil {
		return err
	}
	defer process.Close()
	return process.Signal(signal)
}

// Wait returns nil when a container's first process has ended. It uses no time of the processor meanwhile. The error is sidecar.ErrGone if
// the container does not run.
func (r *Runtime) Wait(ctx context.Context, id string) error {
	process, err := r.open(ctx, id)
	if err != nil {
		return err
	}
	if err := unix.SetNonblock(process.fd, true); err != nil {
		process.Close()
		return fmt.Errorf("wait for container %s: %w", id, err)
	}
	file := os.NewFile(uintptr(process.fd), "pidfd")
	defer file.Close() //nolint:errcheck // nothing was written
	stop := context.AfterFunc(ctx, func() { _ = file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	conn, err := file.SyscallConn()
	if err == nil {
		err = conn.Read(ended)
	}
	if err != nil {
		return fmt.Errorf("wait for container %s: %w", id, err)
	}
	return nil
}

// ended reports whether the process of a descriptor has ended: then the descriptor is readable.
func ended(fd uintptr) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0) //nolint:gosec // descriptors are small
	return err == nil && n > 0
}

// Process is a container's first process, held by a descriptor: its number may be given to another process after it has ended.
type Process struct {
	fd int
	id string
}

// open opens a container's process. The runtime is asked again once it is open: if it still names the same number, the process that was
// opened is the container's.
func (r *Runtime) open(ctx context.Context, id string) (Process, error) {
	pid, err := r.pid(ctx, id)
	if err != nil {
		return Process{}, err
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return Process{}, fmt.Errorf("open process %d of container %s: %w: %w", pid, id, sidecar.ErrGone, err)
	}
	p := Process{fd: fd, id: id}
	if again, err := r.pid(ctx, id); err != nil || again != pid {
		p.Close()
		return Process{}, fmt.Errorf("container %s: its process %d has ended: %w", id, pid, sidecar.ErrGone)
	}
	return p, nil
}

// Signal sends a signal to the process.
func (p Process) Signal(signal unix.Signal) error {
	if err := unix.PidfdSendSignal(p.fd, signal, nil, 0); err != nil {
		return fmt.Errorf("signal container %s: %w", p.id, err)
	}
	return nil
}

// Close closes the descriptor.
func (p Process) Close() { _ = unix.Close(p.fd) }

// pid returns the node's number of a running container's first process.
func (r *Runtime) pid(ctx context.Context, id string) (int, error) {
	resp, err := r.runtime.ContainerStatus(ctx, &criv1.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		return 0, fmt.Errorf("read status of container %s: %w", id, gone(err))
	}
	if resp.GetStatus().GetState() != criv1.ContainerState_CONTAINER_RUNNING {
		return 0, fmt.Errorf("container %s: %w", id, sidecar.ErrGone)
	}
	var info struct {
		PID int `json:"pid"`
	}
	if err := json.Unmarshal([]byte(resp.GetInfo()["info"]), &info); err != nil {
		return 0, fmt.Errorf("container %s: decode verbose status: %w", id, err)
	}
	if info.PID <= 1 { // 0 would be a signal to the agent's own processes
		return 0, fmt.Errorf("container %s: its process has the number %d: %w", id, info.PID, sidecar.ErrGone)
	}
	return info.PID, nil
}
