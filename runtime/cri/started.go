package cri

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// labelContainerName is set by the kubelet on every container that it makes: the name in the pod's spec.
const labelContainerName = "io.kubernetes.container.name"

// FirstStart returns when the first container of a sandbox was started, of those with a name that counts; the zero time if none was. Containers that
// were removed since are not known.
func (f *Finder) FirstStart(ctx context.Context, sandboxID string, counts func(container string) bool) (first time.Time, err error) {
	all, err := f.runtime.ListContainers(ctx, &criv1.ListContainersRequest{Filter: &criv1.ContainerFilter{PodSandboxId: sandboxID}})
	if err != nil {
		return first, fmt.Errorf("list containers: %w", err)
	}
	for _, c := range all.GetContainers() {
		name := c.GetLabels()[labelContainerName]
		if c.GetPodSandboxId() != sandboxID || name == "" || c.GetState() == criv1.ContainerState_CONTAINER_CREATED || !counts(name) {
			continue
		}
		answer, err := f.runtime.ContainerStatus(ctx, &criv1.ContainerStatusRequest{ContainerId: c.GetId()})
		switch at := answer.GetStatus().GetStartedAt(); {
		case status.Code(err) == codes.NotFound: // removed since it was listed
		case err != nil:
			return first, fmt.Errorf("read status of container %s: %w", name, err)
		case at > 0 && (first.IsZero() || at < first.UnixNano()):
			first = time.Unix(0, at)
		}
	}
	return first, nil
}
