package cri

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"istio-pod-network-controller/internal/podnet"
)

var errHostNetwork = errors.New("it uses the host's network: it has no namespace of its own")

// newest returns the ID of the pod's newest ready sandbox, or "". It does not rely on the runtime's filter. The attempt decides, which
// the kubelet counts up with each new sandbox of a pod, because clocks can be set back; between equal attempts the time decides.
func newest(items []*criv1.PodSandbox, pod podnet.Sandbox) string {
	ready := slices.DeleteFunc(slices.Clone(items), func(s *criv1.PodSandbox) bool {
		return s.GetState() != criv1.PodSandboxState_SANDBOX_READY || !isOf(s.GetMetadata(), pod)
	})
	if len(ready) == 0 {
		return ""
	}
	return slices.MaxFunc(ready, func(a, b *criv1.PodSandbox) int {
		return cmp.Or(cmp.Compare(a.GetMetadata().GetAttempt(), b.GetMetadata().GetAttempt()), cmp.Compare(a.GetCreatedAt(), b.GetCreatedAt()))
	}).GetId()
}

// isOf reports whether a sandbox is the pod's. If the pod's name is known it must match, too, since anybody who makes a sandbox chooses
// its labels.
func isOf(m *criv1.PodSandboxMetadata, pod podnet.Sandbox) bool {
	return m.GetUid() == pod.UID && (pod.Name == "" || m.GetName() == pod.Name && m.GetNamespace() == pod.Namespace)
}

// check returns an error unless a status is about the wanted sandbox and pod, the sandbox is still ready, and it has a network
// of its own.
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
