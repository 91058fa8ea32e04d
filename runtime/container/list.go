package container

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"istio-pod-network-controller/internal/sidecar"
)

// List returns the containers of a pod's proxies, in any state, or of all proxies on the node if podUID is empty.
func (r *Runtime) List(ctx context.Context, podUID string) ([]sidecar.Container, error) {
	selector := map[string]string{labelSidecar: "true"}
	if podUID != "" {
		selector[labelPodUID] = podUID
	}
	resp, err := r.runtime.ListContainers(ctx, &criv1.ListContainersRequest{Filter: &criv1.ContainerFilter{LabelSelector: selector}})
	if err != nil {
		return nil, fmt.Errorf("list the containers of proxies: %w", err)
	}
	out := make([]sidecar.Container, 0, len(resp.GetContainers()))
	for _, c := range resp.GetContainers() {
		if l := c.GetLabels(); l[labelSidecar] == "true" && (podUID == "" || l[labelPodUID] == podUID) {
			out = append(out, containerOf(c))
		}
	}
	return out, nil
}

func containerOf(c *criv1.Container) sidecar.Container {
	out := sidecar.Container{
		ID: c.GetId(), Sandbox: c.GetPodSandboxId(), Labels: labelsOf(c.GetLabels()), Epoch: c.GetMetadata().GetAttempt(),
		State: sidecar.Exited, Image: cmp.Or(c.GetLabels()[labelImage], c.GetImage().GetUserSpecifiedImage()), Created: time.Unix(0, c.GetCreatedAt()),
	}
	switch c.GetState() {
	case criv1.ContainerState_CONTAINER_CREATED:
		out.State = sidecar.Created
	case criv1.ContainerState_CONTAINER_RUNNING:
		out.State = sidecar.Running
	case criv1.ContainerState_CONTAINER_EXITED, criv1.ContainerState_CONTAINER_UNKNOWN:
	}
	return out
}

// unknownCode is the exit code of a container of which the runtime does not know it: not 0.
const unknownCode = -1

// Applications lists the containers of a sandbox that are not ours. It only reads, so it may be called while the runtime waits for an
// answer over NRI.
func (r *Runtime) Applications(ctx context.Context, sandbox string) ([]sidecar.Application, error) {
	resp, err := r.runtime.ListContainers(ctx, &criv1.ListContainersRequest{Filter: &criv1.ContainerFilter{PodSandboxId: sandbox}})
	if err != nil {
		return nil, fmt.Errorf("list containers of sandbox %s: %w", sandbox, err)
	}
	var out []sidecar.Application
	for _, c := range resp.GetContainers() {
		if c.GetPodSandboxId() != sandbox || c.GetLabels()[labelSidecar] == "true" || c.GetLabels()[labelProbe] == "true" {
			continue
		}
		a := sidecar.Application{ID: c.GetId(), Name: c.GetMetadata().GetName(), Attempt: c.GetMetadata().GetAttempt(), State: containerOf(c).State}
		if a.State == sidecar.Exited {
			end, err := r.End(ctx, c.GetId())
			if a.ExitCode = end.ExitCode; errors.Is(err, sidecar.ErrNotEnded) {
				a.ExitCode = unknownCode
			} else if err != nil {
				return nil, err
			}
		}
		out = append(out, a)
	}
	return out, nil
}

const sharedName = "proxy"

// Shared returns the running containers of the proxy that the node's pods of a profile share, that of the oldest pod first: while one pod
// replaces another, both run. The proxy's pods are in the given namespace, and carry the profile's name as a label. If none runs, the error is
// sidecar.ErrGone.
func (r *Runtime) Shared(ctx context.Context, namespace, profile string) ([]sidecar.Container, error) {
	sandboxes, err := sharedSandboxes(ctx, r.runtime, namespace, profile)
	if err != nil {
		return nil, err
	}
	if len(sandboxes) == 0 {
		return nil, fmt.Errorf("no pod of the namespace %s with the label %s=%s runs on this node: %w", namespace, sidecar.LabelShared, profile, sidecar.ErrGone)
	}
	resp, err := r.runtime.ListContainers(ctx, &criv1.ListContainersRequest{Filter: &criv1.ContainerFilter{
		LabelSelector: map[string]string{labelContainerName: sharedName, labelPodNamespace: namespace},
		State:         &criv1.ContainerStateValue{State: criv1.ContainerState_CONTAINER_RUNNING},
	}})
	if err != nil {
		return nil, fmt.Errorf("list the containers of shared proxies: %w", err)
	}
	var out []sidecar.Container
	for _, c := range resp.GetContainers() {
		found := containerOf(c)
		if _, ready := sandboxes[found.Sandbox]; ready && c.GetMetadata().GetName() == sharedName && found.State == sidecar.Running {
			out = append(out, found)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("the container %s of the shared proxy's pod does not run: %w", sharedName, sidecar.ErrGone)
	}
	slices.SortFunc(out, func(a, b sidecar.Container) int {
		return cmp.Or(cmp.Compare(sandboxes[a.Sandbox], sandboxes[b.Sandbox]), cmp.Compare(a.Sandbox, b.Sandbox))
	})
	return out, nil
}

// HasSharedProxy reports whether a pod runs on this node, in any namespace, that has the label of a profile's shared proxy.
func (r *Runtime) HasSharedProxy(ctx context.Context, profile string) (bool, error) {
	found, err := sharedSandboxes(ctx, r.runtime, "", profile)
	return len(found) > 0, err
}

// sharedSandboxes returns when each ready sandbox of a profile's shared proxy was made, by ID, in any namespace if the given one is "".
func sharedSandboxes(ctx context.Context, client criv1.RuntimeServiceClient, namespace, profile string) (map[string]int64, error) {
	labels := map[string]string{sidecar.LabelShared: profile}
	if namespace != "" {
		labels[labelPodNamespace] = namespace
	}
	resp, err := client.ListPodSandbox(ctx, &criv1.ListPodSandboxRequest{Filter: &criv1.PodSandboxFilter{
		LabelSelector: labels,
		State:         &criv1.PodSandboxStateValue{State: criv1.PodSandboxState_SANDBOX_READY},
	}})
	if err != nil {
		return nil, fmt.Errorf("list the sandboxes of shared proxies: %w", err)
	}
	out := map[string]int64{}
	for _, s := range resp.GetItems() {
		if (namespace == "" || s.GetMetadata().GetNamespace() == namespace) && s.GetLabels()[sidecar.LabelShared] == profile && s.GetState() == criv1.PodSandboxState_SANDBOX_READY {
			out[s.GetId()] = s.GetCreatedAt()
		}
	}
	return out, nil
}
