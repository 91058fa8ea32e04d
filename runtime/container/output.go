package container

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"istio-pod-network-controller/internal/sidecar"
)

// probeName is the name of a container that runs a program for its answer, and labelProbe its label. List leaves such containers out.
const (
	probeName  = ContainerName + "-probe"
	labelProbe = "pod-network-controller.istio.io/managed-proxy-probe"
)

// Bounds of a program that is run for its answer.
const (
	probeTimeout = 3 * time.Second
	probePoll    = 20 * time.Millisecond
	maxOutput    = 4 << 10
)

// Output runs a short container and returns what it has printed, on either stream. The container is removed in any case, and so are those
// of the same sandbox that an agent has left behind.
func (r *Runtime) Output(ctx context.Context, spec sidecar.Spec) (text string, err error) {
	sandbox, err := r.sandboxConfig(ctx, spec)
	if err != nil {
		return "", err
	}
	if err := r.removeProbes(ctx, spec.Sandbox); err != nil {
		return "", err
	}
	config := probeConfig(spec, sandbox)
	if err := r.makeLogDirectory(sandbox, config); err != nil {
		return "", err
	}
	log := filepath.Join(sandbox.GetLogDirectory(), config.GetLogPath())
	if err := os.RemoveAll(log); err != nil {
		return "", fmt.Errorf("remove an older log: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTimeout)
		defer cancel()
		err = errors.Join(err, r.removeProbes(ctx, spec.Sandbox), os.RemoveAll(log))
	}()
	id, err := r.start(ctx, spec.Sandbox, config, sandbox)
	if err != nil {
		return "", err
	}
	end, err := r.awaitEnd(ctx, id)
	if err != nil {
		return "", err
	}
	text, err = readLog(log)
	if err == nil && end.GetExitCode() != 0 {
		err = fmt.Errorf("it ended with exit code %d (%s): %.200q", end.GetExitCode(), end.GetReason(), text)
	}
	return text, err
}

// probeConfig is that of a proxy's container under another name, so that nothing takes it for one.
func probeConfig(spec sidecar.Spec, sandbox *criv1.PodSandboxConfig) *criv1.ContainerConfig {
	config := containerConfig(spec, sandbox)
	config.Metadata.Name, config.LogPath = probeName, path.Join(ContainerName, "probe.log")
	delete(config.Labels, labelSidecar)
	config.Labels[labelContainerName], config.Labels[labelProbe] = probeName, "true"
	return config
}

func (r *Runtime) removeProbes(ctx context.Context, sandbox string) error {
	resp, err := r.runtime.ListContainers(ctx, &criv1.ListContainersRequest{Filter: &criv1.ContainerFilter{
		PodSandboxId: sandbox, LabelSelector: map[string]string{labelProbe: "true"},
	}})
	if err != nil {
		return fmt.Errorf("list containers of sandbox %s: %w", sandbox, err)
	}
	var wrong []error
	for _, c := range resp.GetContainers() {
		if c.GetLabels()[labelProbe] == "true" && c.GetPodSandboxId() == sandbox {
			wrong = append(wrong, r.Remove(ctx, c.GetId()))
		}
	}
	return errors.Join(wrong...)
}

// awaitEnd asks for a container's status until it has ended.
func (r *Runtime) awaitEnd(ctx context.Context, id string) (*criv1.ContainerStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	tick := time.NewTicker(probePoll)
	defer tick.Stop()
	for {
		resp, err := r.runtime.ContainerStatus(ctx, &criv1.ContainerStatusRequest{ContainerId: id})
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("container %s has not ended within %s", id, probeTimeout)
		case err != nil:
			return nil, fmt.Errorf("read status of container %s: %w", id, gone(err))
		case resp.GetStatus().GetState() == criv1.ContainerState_CONTAINER_EXITED:
			return resp.GetStatus(), nil
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// readLog returns the end of what a container has printed.
func readLog(name string) (string, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0) //nolint:gosec // the kubelet's directory, and our names
	if err != nil {
		return "", fmt.Errorf("read what the container has printed: %w", err)
	}
	defer f.Close() //nolint:errcheck // it was only read
	raw, err := io.ReadAll(io.LimitReader(f, maxOutput))
	if err != nil {
		return "", fmt.Errorf("read what the container has printed: %w", err)
	}
	var lines []string
	for line := range bytes.Lines(raw) {
		if printed, ok := sidecar.LogText(strings.TrimSuffix(string(line), "\n")); ok {
			lines = append(lines, printed)
		}
	}
	return strings.Join(lines, "\n"), nil
}
