package container

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"istio-pod-network-controller/internal/sidecar"
)

// probeName is the name of a container that runs a program for its answer, and labelProbe its label. List leaves such containers out.
const (
	probeName  = sidecar.ContainerName + "-probe"
	labelProbe = "pod-network-controller.istio.io/managed-proxy-probe"
)

// Bounds of a program that is run for its answer.
const (
	probeTimeout = 3 * time.Second
	probePoll    = 20 * time.Millisecond
	maxOutput    = 4 << 10
)

// probeConfig copies the configuration of a proxy's container under a different name and without our label.
func probeConfig(spec sidecar.Spec, sandbox *criv1.PodSandboxConfig) *criv1.ContainerConfig {
	config := containerConfig(spec, sandbox)
	config.Metadata.Name, config.LogPath = probeName, path.Join(sidecar.ContainerName, "probe.log")
	delete(config.Labels, labelSidecar)
	config.Labels[labelContainerName], config.Labels[labelProbe] = probeName, "true"
	return config
}

func awaitEnd(ctx context.Context, client criv1.RuntimeServiceClient, id string) (*criv1.ContainerStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	tick := time.NewTicker(probePoll)
	defer tick.Stop()
	for {
		resp, err := client.ContainerStatus(ctx, &criv1.ContainerStatusRequest{ContainerId: id})
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

func readLog(name string) (string, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
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
