package container

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"istio-pod-network-controller/internal/sidecar"
)

// ended reports whether the process of a descriptor has ended: then the descriptor is readable.
func ended(fd uintptr) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return err == nil && n > 0
}

// process is a container's first process, held by a descriptor: its number may be given to another process after it has ended.
type process struct {
	fd int
	id string
}

// open opens a container's process. The runtime is asked again once it is open: if it still names the same number, the process that was
// opened is the container's.
func open(ctx context.Context, client criv1.RuntimeServiceClient, id string) (process, error) {
	pid, err := pidOf(ctx, client, id)
	if err != nil {
		return process{}, err
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return process{}, fmt.Errorf("open process %d of container %s: %w: %w", pid, id, sidecar.ErrGone, err)
	}
	p := process{fd: fd, id: id}
	if again, err := pidOf(ctx, client, id); err != nil || again != pid {
		p.close()
		return process{}, cmp.Or(err, fmt.Errorf("container %s: its process %d has ended: %w", id, pid, sidecar.ErrGone))
	}
	return p, nil
}

func (p process) signal(s unix.Signal) error {
	err := unix.PidfdSendSignal(p.fd, s, nil, 0)
	if errors.Is(err, unix.ESRCH) { // it ended since it was opened
		err = errors.Join(sidecar.ErrGone, err)
	}
	if err != nil {
		return fmt.Errorf("signal container %s: %w", p.id, err)
	}
	return nil
}

// wait waits for the end of the process, and closes the descriptor.
func (p process) wait(ctx context.Context) error {
	if err := unix.SetNonblock(p.fd, true); err != nil {
		p.close()
		return fmt.Errorf("wait for container %s: %w", p.id, err)
	}
	file := os.NewFile(uintptr(p.fd), "pidfd")
	defer file.Close() //nolint:errcheck // nothing was written
	stop := context.AfterFunc(ctx, func() { _ = file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	conn, err := file.SyscallConn()
	if err == nil {
		err = conn.Read(ended)
	}
	if err != nil {
		return fmt.Errorf("wait for container %s: %w", p.id, err)
	}
	return nil
}

func (p process) close() { _ = unix.Close(p.fd) }

// pidOf returns the node's number of a running container's first process.
func pidOf(ctx context.Context, client criv1.RuntimeServiceClient, id string) (int, error) {
	resp, err := client.ContainerStatus(ctx, &criv1.ContainerStatusRequest{ContainerId: id, Verbose: true})
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
