package container

import (
	"context"
	"fmt"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"istio-pod-network-controller/internal/sidecar"
)

// Owner returns which user and group of the node a container's are: other ones where its pod has a user namespace (hostUsers: false). Files for the
// container belong to these, since its mounts are not mapped: a tmpfs cannot be before Linux 6.3.
func (r *Runtime) Owner(ctx context.Context, spec sidecar.Spec) (uid, gid int64, err error) {
	sandbox, err := sandboxConfig(ctx, r.runtime, r.logRoot, spec)
	if err != nil {
		return 0, 0, err
	}
	users := sandbox.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()
	if users == nil || users.GetMode() == criv1.NamespaceMode_NODE {
		return spec.UID, spec.GID, nil
	}
	if uid, err = onNode(users.GetUids(), spec.UID); err == nil {
		gid, err = onNode(users.GetGids(), spec.GID)
	}
	return uid, gid, err
}

// onNode returns the node's number of a user or group of a pod.
func onNode(ranges []*criv1.IDMapping, id int64) (int64, error) {
	for _, r := range ranges {
		if nth := id - int64(r.GetContainerId()); nth >= 0 && nth < int64(r.GetLength()) {
			return int64(r.GetHostId()) + nth, nil
		}
	}
	return 0, fmt.Errorf("the pod's user namespace (hostUsers: false) has no user or group %d, as which the proxy runs: choose a profile with another one, or hostUsers: true", id)
}
