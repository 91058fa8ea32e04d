package cri

import (
	"cmp"
	"errors"
	"fmt"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"istio-pod-network-controller/internal/podnet"
)

var errHostNetwork = errors.New("it uses the host's network: it has no namespace of its own")

// newest is the ID of the ready sandbox of the pod that was made last, "" without one. It does not rely on the runtime
// having filtered. The attempt decides, which the kubelet counts up with each new sandbox of a pod, since clocks are set
// back; the time decides between equal ones.
func newest(items []*criv1.PodSandbox, pod podnet.Sandbox) string {
	var last *criv1.PodSandbox
	for _, s := range items {
		if s.GetState() != criv1.PodSandboxState_SANDBOX_READY || !isOf(s.GetMetadata(), pod) {
			continue
		}
		if last == nil || cmp.Or(
			cmp.Compare(s.GetMetadata().GetAttempt(), last.GetMetadata().GetAttempt()),
			cmp.Compare(s.GetCreatedAt(), last.GetCreatedAt()),
		) > 0 {
			last = s
		}
	}
	return last.GetId()
}

// isOf reports whether a sandbox is the pod's. Where the pod's name is known it must match, too: a sandbox is labelled by
// whoever made it.
func isOf(m *criv1.PodSandboxMetadata, pod podnet.Sandbox) bool {
	return m.GetUid() == pod.UID && (pod.Name == "" || m.GetName() == pod.Name && m.GetNamespace() == pod.Namespace)
}

// check promises that a status speaks of the sandbox and the pod that were asked for, that the sandbox is still ready,
// and that it has a network of its own.
func check(s *criv1.PodSandboxStatus, id string, pod podnet.Sandbox) error {
	switch {
	case s == nil:
		return errors.New("the runtime's answer holds no status")
	case s.GetId() != id:
		return fmt.Errorf("the runtime's answer is about sandbox %q", s.GetId())
	case !isOf(s.GetMetadata(), pod):
		return fmt.Errorf("it belongs to pod %s/%s of UID %q, want UID %q",
			s.GetMetadata().GetNamespace(), s.GetMetadata().GetName(), s.GetMetadata().GetUid(), pod.UID)
	case s.GetState() != criv1.PodSandboxState_SANDBOX_READY: // stopped since it was listed
		return fmt.Errorf("state %s: %w", s.GetState(), podnet.ErrNotReady)
	case s.GetLinux().GetNamespaces().GetOptions().GetNetwork() == criv1.NamespaceMode_NODE:
		return errHostNetwork
	}
	return nil
}
