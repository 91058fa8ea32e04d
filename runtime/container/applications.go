package container

import (
	"context"
	"fmt"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"istio-pod-network-controller/internal/sidecar"
)

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
			if err != nil {
				return nil, err
			}
			a.ExitCode = end.ExitCode
		}
		out = append(out, a)
	}
	return out, nil
}
