package container

import (
	"context"
	"fmt"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// HasSharedProxy reports whether a pod of whatever namespace runs on this node that says to be the shared proxy of a profile.
func (r *Runtime) HasSharedProxy(ctx context.Context, profile string) (bool, error) {
	resp, err := r.runtime.ListPodSandbox(ctx, &criv1.ListPodSandboxRequest{Filter: &criv1.PodSandboxFilter{
		LabelSelector: map[string]string{"pod-network-controller.istio.io/shared-proxy": profile},
		State:         &criv1.PodSandboxStateValue{State: criv1.PodSandboxState_SANDBOX_READY},
	}})
	if err != nil {
		return false, fmt.Errorf("list the sandboxes of shared proxies: %w", err)
	}
	return len(resp.GetItems()) > 0, nil
}
