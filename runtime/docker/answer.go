package docker

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"

	"istio-pod-network-controller/internal/podnet"
)

// Labels that dockershim and cri-dockerd put on every container of a pod
// (https://github.com/Mirantis/cri-dockerd/blob/master/core/docker_service.go).
const (
	labelPodUID       = "io.kubernetes.pod.uid"
	labelPodName      = "io.kubernetes.pod.name"
	labelPodNamespace = "io.kubernetes.pod.namespace"
	labelType         = "io.kubernetes.docker.type"
	typeSandbox       = "podsandbox"
)

// newest returns the ID of the pod's newest running sandbox, or "". It does not rely on the Engine's filter. The attempt decides, because
// clocks can be set back; between equal attempts the time in seconds does, and then the place in the list: the Engine lists the newest
// first.
func newest(list []container.Summary, pod podnet.Sandbox) string {
	running := slices.DeleteFunc(slices.Clone(list), func(c container.Summary) bool { return c.State != container.StateRunning || !isSandbox(c.Labels, pod) })
	if len(running) == 0 {
		return ""
	}
	return slices.MaxFunc(running, func(a, b container.Summary) int {
		return cmp.Or(cmp.Compare(attemptOf(a.Names...), attemptOf(b.Names...)), cmp.Compare(a.Created, b.Created))
	}).ID
}

// isSandbox reports whether a sandbox of the pod has such labels. If the pod's name is known it must match, too, since anybody who
// makes a container chooses its labels.
func isSandbox(labels map[string]string, pod podnet.Sandbox) bool {
	return labels[labelPodUID] == pod.UID && labels[labelType] == typeSandbox &&
		(pod.Name == "" || labels[labelPodName] == pod.Name && labels[labelPodNamespace] == pod.Namespace)
}

// attemptOf returns the number that the kubelet counts up with each new sandbox of a pod. It is only in the container's name,
// k8s_POD_NAME_NAMESPACE_UID_ATTEMPT, followed by a random part if a container of that name was left over
// (https://github.com/Mirantis/cri-dockerd/blob/master/core/naming.go). For other names it is 0.
func attemptOf(names ...string) uint32 {
	for _, name := range names {
		parts := strings.Split(strings.TrimPrefix(name, "/"), "_")
		if len(parts) < 6 || len(parts) > 7 || parts[0] != "k8s" || parts[1] != "POD" {
			continue
		}
		if attempt, err := strconv.ParseUint(parts[5], 10, 32); err == nil {
			return uint32(attempt)
		}
	}
	return 0
}

// check returns an error unless an answer is about the wanted sandbox and pod, the sandbox still runs, and it has a network of
// its own.
func check(c *container.InspectResponse, id string, pod podnet.Sandbox) error {
	switch {
	case c.ID != id:
		return fmt.Errorf("the Engine's answer is about container %q", c.ID)
	case c.Config == nil || !isSandbox(c.Config.Labels, pod):
		return fmt.Errorf("its labels do not say that it is the sandbox of pod UID %q", pod.UID)
	case c.State == nil || !c.State.Running: // stopped since it was listed
		return fmt.Errorf("it does not run: %w", podnet.ErrNotReady)
	case c.HostConfig != nil && c.HostConfig.NetworkMode.IsHost():
		return errors.New("it uses the host's network: it has no namespace of its own")
	}
	return nil
}

// netNSOf returns the path of the network namespace. SandboxKey is a bind mount that exists as long as the namespace.
// /proc/PID/ns/net is only the fallback, since it needs the host's process IDs.
func netNSOf(c *container.InspectResponse) (string, error) {
	var key string
	if c.NetworkSettings != nil {
		key = c.NetworkSettings.SandboxKey
	}
	if key != "" {
		if !filepath.IsAbs(key) || strings.ContainsRune(key, 0) || len(key) > maxPathBytes {
			return "", fmt.Errorf("NetworkSettings.SandboxKey %.100q is not absolute and plain", key)
		}
		return key, nil
	}
	var pid int
	if c.State != nil {
		pid = c.State.Pid
	}
	path, err := podnet.ProcessNetNS(int64(pid))
	if err != nil {
		return "", fmt.Errorf("no network namespace in the answer: NetworkSettings.SandboxKey is empty, and State.Pid: %w", err)
	}
	return path, nil
}

// createdAt returns when a container was made, in nanoseconds since 1970, or 0 if the Engine does not say.
func createdAt(c *container.InspectResponse) int64 {
	made, err := time.Parse(time.RFC3339Nano, c.Created)
	if err != nil || made.Year() < 1970 || made.Year() > 2200 {
		return 0
	}
	return made.UnixNano()
}

// handlerOf returns the name of the OCI runtime in the Engine's configuration, or "" for the two names of the built-in runc.
func handlerOf(c *container.InspectResponse) string {
	if c.HostConfig == nil || c.HostConfig.Runtime == "runc" || c.HostConfig.Runtime == "io.containerd.runc.v2" {
		return ""
	}
	return c.HostConfig.Runtime
}
