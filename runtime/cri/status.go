package cri

import (
	"errors"
	"fmt"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"istio-pod-network-controller/internal/podnet"
)

var errHostNetwork = errors.New("it uses the host's network: it has no namespace of its own")

// newest is the ID of the ready sandbox of the pod that was made last, "" without one. It does not rely on the runtime
// having filtered. The attempt decides between equal times: the kubelet counts it up with each new sandbox of a pod.
func newest(items []*criv1.PodSandbox, uid string) string {
	var last *criv1.PodSandbox
	for _, s := range items {
		if s.GetState() != criv1.PodSandboxState_SANDBOX_READY || s.GetMetadata().GetUid() != uid {
			continue
		}
		if last == nil || s.GetCreatedAt() > last.GetCreatedAt() ||
			s.GetCreatedAt() == last.GetCreatedAt() && s.GetMetadata().GetAttempt() > last.GetMetadata().GetAttempt() {
			last = s
		}
	}
	return last.GetId()
}

// check promises that a status speaks of the sandbox and the pod that were asked for, that the sandbox is still ready,
// and that it has a network of its own.
func check(s *criv1.PodSandboxStatus, id, uid string) error {
	switch {
	case s == nil:
		return errors.New("the runtime's answer holds no status")
	case s.GetId() != id:
		return fmt.Errorf("the runtime's answer is about sandbox %q", s.GetId())
	case s.GetMetadata().GetUid() != uid:
		return fmt.Errorf("it belongs to pod UID %q, want %q", s.GetMetadata().GetUid(), uid)
	case s.GetState() != criv1.PodSandboxState_SANDBOX_READY: // stopped since it was listed
		return fmt.Errorf("state %s: %w", s.GetState(), podnet.ErrNotReady)
	case s.GetLinux().GetNamespaces().GetOptions().GetNetwork() == criv1.NamespaceMode_NODE:
		return errHostNetwork
	}
	return nil
}
