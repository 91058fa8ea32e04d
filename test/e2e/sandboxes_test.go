package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// sandbox is what the container runtime knows of a pod's newest ready sandbox.
type sandbox struct {
	ID string
	// PID is the pause process, as this program counts.
	PID int
	// NetNS is the path of the network namespace on the node.
	NetNS string
}

// here is the network namespace as a path that works from this program. /var/run is a link that would lead elsewhere.
func (s sandbox) here(c *cluster) string {
	return filepath.Join(c.node.NodeRoot, "run/netns", filepath.Base(s.NetNS))
}

func (c *cluster) sandboxOf(t testing.TB, pod *corev1.Pod) sandbox {
	t.Helper()
	s, err := c.findSandbox(t.Context(), pod)
	must(t, err)
	return s
}

func (c *cluster) findSandbox(ctx context.Context, pod *corev1.Pod) (sandbox, error) {
	list, err := c.runtime.ListPodSandbox(ctx, &criv1.ListPodSandboxRequest{Filter: &criv1.PodSandboxFilter{
		State:         &criv1.PodSandboxStateValue{State: criv1.PodSandboxState_SANDBOX_READY},
		LabelSelector: map[string]string{"io.kubernetes.pod.uid": string(pod.UID)},
	}})
	if err != nil {
		return sandbox{}, fmt.Errorf("list sandboxes: %w", err)
	}
	var newest *criv1.PodSandbox
	for _, item := range list.Items {
		if newest == nil || item.CreatedAt > newest.CreatedAt {
			newest = item
		}
	}
	if newest == nil {
		return sandbox{}, errors.New("no sandbox is ready")
	}
	status, err := c.runtime.PodSandboxStatus(ctx, &criv1.PodSandboxStatusRequest{PodSandboxId: newest.Id, Verbose: true})
	if err != nil {
		return sandbox{}, fmt.Errorf("ask for sandbox %s: %w", newest.Id, err)
	}
	return readSandbox(newest.Id, status.Info["info"])
}

func readSandbox(id, text string) (sandbox, error) {
	var info struct {
		PID         int `json:"pid"`
		RuntimeSpec struct {
			Linux struct {
				Namespaces []struct{ Type, Path string } `json:"namespaces"`
			} `json:"linux"`
		} `json:"runtimeSpec"`
	}
	if err := json.Unmarshal([]byte(text), &info); err != nil {
		return sandbox{}, fmt.Errorf("read sandbox %s: %w", id, err)
	}
	s := sandbox{ID: id, PID: info.PID}
	for _, ns := range info.RuntimeSpec.Linux.Namespaces {
		if ns.Type == "network" {
			s.NetNS = ns.Path
		}
	}
	return s, nil
}

// containerPID is the first process of a pod's container, as this program counts.
func (c *cluster) containerPID(t testing.TB, pod *corev1.Pod, name string) int {
	t.Helper()
	pid, err := c.findContainerPID(t.Context(), pod, name)
	must(t, err)
	return pid
}

func (c *cluster) findContainerPID(ctx context.Context, pod *corev1.Pod, name string) (int, error) {
	list, err := c.runtime.ListContainers(ctx, &criv1.ListContainersRequest{Filter: &criv1.ContainerFilter{
		State: &criv1.ContainerStateValue{State: criv1.ContainerState_CONTAINER_RUNNING},
		LabelSelector: map[string]string{
			"io.kubernetes.pod.uid": string(pod.UID), "io.kubernetes.container.name": name,
		},
	}})
	if err != nil {
		return 0, fmt.Errorf("list containers: %w", err)
	}
	if len(list.Containers) != 1 {
		return 0, fmt.Errorf("pod %s has %d running containers %s, want 1", pod.Name, len(list.Containers), name)
	}
	status, err := c.runtime.ContainerStatus(ctx, &criv1.ContainerStatusRequest{ContainerId: list.Containers[0].Id, Verbose: true})
	if err != nil {
		return 0, fmt.Errorf("ask for container %s: %w", list.Containers[0].Id, err)
	}
	s, err := readSandbox(list.Containers[0].Id, status.Info["info"])
	return s.PID, err
}

// started calls f for each sandbox, and each container, of a namespace that has started, until ctx ends.
func (c *cluster) started(ctx context.Context, namespace string, f func(startedEvent)) error {
	events, err := c.runtime.GetContainerEvents(ctx, &criv1.GetEventsRequest{})
	if err != nil {
		return fmt.Errorf("subscribe to the runtime's events: %w", err)
	}
	for {
		e, err := events.Recv()
		switch {
		case err != nil && ctx.Err() == nil:
			return fmt.Errorf("read the runtime's events: %w", err)
		case err != nil:
			return nil //nolint:nilerr // the end that was asked for
		}
		status := e.GetPodSandboxStatus()
		if e.ContainerEventType == criv1.ContainerEventType_CONTAINER_STARTED_EVENT && status.GetMetadata().GetNamespace() == namespace {
			f(startedEvent{pod: status.Metadata.Name, name: nameOf(e), sandbox: e.ContainerId == status.Id, at: time.Unix(0, e.CreatedAt)})
		}
	}
}

// nameOf is the name of the container that an event is about; that of a sandbox is empty.
func nameOf(e *criv1.ContainerEventResponse) string {
	for _, c := range e.GetContainersStatuses() {
		if c.GetId() == e.GetContainerId() {
			return c.GetMetadata().GetName()
		}
	}
	return ""
}

// startedEvent is the start of a pod's sandbox, which is ready then, or of one of its containers.
type startedEvent struct {
	pod     string
	name    string // of the container
	sandbox bool
	at      time.Time
}
