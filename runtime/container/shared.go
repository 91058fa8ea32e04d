package container

import (
	"context"
	"fmt"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"istio-pod-network-controller/internal/sidecar"
)

// sharedName is the name of the container in the pod of a shared proxy.
const sharedName = "proxy"

// Shared returns the running container of the proxy that the node's pods of a profile share. The proxy's pod is in the given namespace,
// and carries the profile's name as a label. While one pod replaces another, both may be ready: then the newest container counts. If
// none runs, the error is sidecar.ErrGone.
func (r *Runtime) Shared(ctx context.Context, namespace, profile string) (sidecar.Container, error) {
	sandboxes, err := r.sharedSandboxes(ctx, namespace, profile)
	if err != nil {
		return sidecar.Container{}, err
	}
	if len(sandboxes) == 0 {
		return sidecar.Container{}, fmt.Errorf("no pod of the namespace %s with the label %s=%s runs on this node: %w", namespace, sidecar.LabelShared, profile, sidecar.ErrGone)
	}
	resp, err := r.runtime.ListContainers(ctx, &criv1.ListContainersRequest{Filter: &criv1.ContainerFilter{
		LabelSelector: map[string]string{labelContainerName: sharedName, labelPodNamespace: namespace},
		State:         &criv1.ContainerStateValue{State: criv1.ContainerState_CONTAINER_RUNNING},
	}})
	if err != nil {
		return sidecar.Container{}, fmt.Errorf("list the containers of shared proxies: %w", err)
	}
	var newest sidecar.Container
	for _, c := range resp.GetContainers() {
		found := containerOf(c)
		if !sandboxes[found.Sandbox] || c.GetMetadata().GetName() != sharedName || found.State != sidecar.Running {
			continue
		}
		if newest.ID == "" || found.Created.After(newest.Created) {
			newest = found
		}
	}
	if newest.ID == "" {
		return sidecar.Container{}, fmt.Errorf("the container %s of the shared proxy's pod does not run: %w", sharedName, sidecar.ErrGone)
	}
	return newest, nil
}

// HasSharedProxy reports whether a pod runs on this node, in any namespace, that has the label of a profile's shared proxy.
func (r *Runtime) HasSharedProxy(ctx context.Context, profile string) (bool, error) {
	found, err := r.sharedSandboxes(ctx, "", profile)
	return len(found) > 0, err
}

// sharedSandboxes returns the IDs of the ready sandboxes of a profile's shared proxy, in any namespace if the given one is "".
func (r *Runtime) sharedSandboxes(ctx context.Context, namespace, profile string) (map[string]bool, error) {
	labels := map[string]string{sidecar.LabelShared: profile}
	if namespace != "" {
		labels[labelPodNamespace] = namespace
	}
	resp, err := r.runtime.ListPodSandbox(ctx, &criv1.ListPodSandboxRequest{Filter: &criv1.PodSandboxFilter{
		LabelSelector: labels,
		State:         &criv1.PodSandboxStateValue{State: criv1.PodSandboxState_SANDBOX_READY},
	}})
	if err != nil {
		return nil, fmt.Errorf("list the sandboxes of shared proxies: %w", err)
	}
	out := map[string]bool{}
	for _, s := range resp.GetItems() {
		if (namespace == "" || s.GetMetadata().GetNamespace() == namespace) && s.GetLabels()[sidecar.LabelShared] == profile && s.GetState() == criv1.PodSandboxState_SANDBOX_READY {
			out[s.GetId()] = true
		}
	}
	return out, nil
}
