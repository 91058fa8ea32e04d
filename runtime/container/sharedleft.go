package container

import (
	"context"
	"fmt"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"istio-pod-network-controller/internal/sidecar"
)

// HasSharedProxy reports whether a pod runs on this node, in any namespace, that has the label of a profile's shared proxy.
func (r *Runtime) HasSharedProxy(ctx context.Context, profile string) (bool, error) {
	resp, err := r.runtime.ListPodSandbox(ctx, &criv1.ListPodSandboxRequest{Filter: &criv1.PodSandboxFilter{
		LabelSelector: map[string]string{sidecar.LabelShared: profile},
		State:         &criv1.PodSandboxStateValue{State: criv1.PodSandboxState_SANDBOX_READY},
	}})
	if err != nil {
		return false, fmt.Errorf("list the sandboxes of shared proxies: %w", err)
	}
	return len(resp.GetItems()) > 0, nil
}
