package docker

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/container"

	"istio-pod-network-controller/internal/podnet"
)

// Labels that dockershim and cri-dockerd put on every container of a pod
// (https://github.com/Mirantis/cri-dockerd/blob/master/core/docker_service.go).
const (
	labelPodUID = "io.kubernetes.pod.uid"
	labelType   = "io.kubernetes.docker.type"
	typeSandbox = "podsandbox"
)

// newest is the ID of the running sandbox of the pod that was made last, "" without one. It does not rely on the Engine
// having filtered. Creation times are in seconds; of equal ones the first wins, since the Engine lists the newest first.
func newest(list []container.Summary, uid string) string {
	var last *container.Summary
	for i := range list {
		c := &list[i]
		if c.State != container.StateRunning || !isSandbox(c.Labels, uid) {
			continue
		}
		if last == nil || c.Created > last.Created {
			last = c
		}
	}
	if last == nil {
		return ""
	}
	return last.ID
}

func isSandbox(labels map[string]string, uid string) bool {
	return labels[labelPodUID] == uid && labels[labelType] == typeSandbox
}

// check promises that an answer speaks of the sandbox and the pod that were asked for, that the sandbox still runs, and
// that it has a network of its own.
func check(c *container.InspectResponse, id, uid string) error {
	switch {
	case c.ID != id:
		return fmt.Errorf("the Engine's answer is about container %q", c.ID)
	case c.Config == nil || !isSandbox(c.Config.Labels, uid):
		return fmt.Errorf("its labels do not say that it is the sandbox of pod UID %q", uid)
	case c.State == nil || !c.State.Running: // stopped since it was listed
		return fmt.Errorf("it does not run: %w", podnet.ErrNotReady)
	case c.HostConfig != nil && c.HostConfig.NetworkMode.IsHost():
		return errors.New("it uses the host's network: it has no namespace of its own")
	}
	return nil
}

// netNSOf takes the path of the network namespace from an answer. SandboxKey is a bind mount that lives as long as the
// namespace; /proc/PID/ns/net is the fallback only, since it needs the host's process IDs.
func netNSOf(c *container.InspectResponse) (string, error) {
	var key string
	if c.NetworkSettings != nil {
		key = c.NetworkSettings.SandboxKey
	}
	var pid int
	if c.State != nil {
		pid = c.State.Pid
	}
	switch {
	case key != "" && (!filepath.IsAbs(key) || strings.ContainsRune(key, 0)):
		return "", fmt.Errorf("NetworkSettings.SandboxKey %q is not absolute and plain", key)
	case key != "":
		return key, nil
	case pid > 0:
		return "/proc/" + strconv.Itoa(pid) + "/ns/net", nil
	}
	return "", fmt.Errorf("no network namespace in the answer: NetworkSettings.SandboxKey is empty, and State.Pid is %d", pid)
}

// handlerOf is the OCI runtime by its name in the Engine's configuration, "" for the two names of the built-in runc.
func handlerOf(c *container.InspectResponse) string {
	if c.HostConfig == nil || c.HostConfig.Runtime == "runc" || c.HostConfig.Runtime == "io.containerd.runc.v2" {
		return ""
	}
	return c.HostConfig.Runtime
}
