package agentstatus

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/internal/podreport"
)

// Name is the program's, and where the documentation installs the agents.
const Name = "istio-pod-network-controller"

// What the chart gives its objects, whatever the release is called.
const (
	labelKey = "app.kubernetes.io/name"
	// Label selects the chart's objects, of which the agents' pods are some.
	Label = labelKey + "=" + Name
	// Container is the agent's container in its pods.
	Container = "agent"
)

// Labelled reports whether an object has the chart's label.
func Labelled(labels map[string]string) bool { return labels[labelKey] == Name }

// IsAgent reports whether a pod is an agent. Whoever may create pods can give one the label. What such a pod says about itself must not be
// believed: inspect sends the caller's token there. An agent also uses the host's network, which takes more rights.
func IsAgent(pod *corev1.Pod) bool {
	owned := slices.ContainsFunc(pod.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Kind == "DaemonSet" })
	return Labelled(pod.Labels) && pod.Spec.HostNetwork && owned && pod.Spec.NodeName != ""
}

// Ready reports whether a pod is ready.
func Ready(pod *corev1.Pod) bool {
	c := podreport.ConditionOf(pod, corev1.PodReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

// ReadySince returns when a pod became ready; zero if it is not.
func ReadySince(pod *corev1.Pod) (since time.Time) {
	if Ready(pod) {
		since = podreport.ConditionOf(pod, corev1.PodReady).LastTransitionTime.Time
	}
	return since
}

// Compare sorts the agents of a node: the agent in charge is first. It is ready, and does not end. Of several such the newest takes over.
func Compare(a, b *corev1.Pod) int {
	rank := func(pod *corev1.Pod) int {
		switch {
		case pod.DeletionTimestamp != nil:
			return 2
		case !Ready(pod):
			return 1
		}
		return 0
	}
	return cmp.Or(rank(a)-rank(b), b.CreationTimestamp.Compare(a.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
}
