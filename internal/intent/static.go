package intent

import corev1 "k8s.io/api/core/v1"

// KeySource is an annotation by which the kubelet says where it has a static pod from. It is also on the mirror pod that the API server has for it.
const KeySource = "kubernetes.io/config.source"

// IsStatic reports whether a pod is a static one, as the kubelet gives it or as its mirror pod in the API server, which has one annotation more.
func IsStatic(pod *corev1.Pod) bool {
	return pod.Annotations[KeySource] != "" || pod.Annotations[corev1.MirrorPodAnnotationKey] != ""
}
