package home

import (
	"fmt"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
)

// KeepPod keeps a pod as the proxy has it that is about to be made, for a successor that starts while the API server is away. The environment of its
// containers and ephemeral containers are left out: no proxy depends on them.
func KeepPod(h Home, pod *corev1.Pod) error {
	kept := pod.DeepCopy()
	kept.ManagedFields, kept.Spec.EphemeralContainers = nil, nil
	for _, containers := range [][]corev1.Container{kept.Spec.InitContainers, kept.Spec.Containers} {
		for i := range containers {
			containers[i].Env = nil
		}
	}
	if err := ReplaceFile(podFile(h), kept); err != nil {
		return fmt.Errorf("note the pod: %w", err)
	}
	return nil
}

// KeptPod returns the pod as the sandbox's last proxy had it, nil if that is not known.
func KeptPod(h Home) *corev1.Pod {
	pod, _ := ReadFile[*corev1.Pod](podFile(h))
	return pod
}

func podFile(h Home) string { return filepath.Join(h.Path, "pod.json") }
