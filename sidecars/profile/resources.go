package profile

import (
	"cmp"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/sidecar"
)

// The kernel ends the process with the highest score first when the node has no memory left. These are the kubelet's scores
// (pkg/kubelet/qos/policy.go): the proxy is treated as a sidecar container of its pod would be.
const (
	guaranteedScore = -997
	maxScore        = 1000 // of a pod that requests nothing
	nodeCritical    = "system-node-critical"
)

// resources returns the bounds of a pod's proxy.
func resources(r v1alpha1.Resources, pod *corev1.Pod) sidecar.Resources {
	memory := amount(r.MemoryLimit, (*resource.Quantity).Value)
	return sidecar.Resources{
		MemoryBytes: memory,
		CPUMilli:    amount(r.CPULimit, (*resource.Quantity).MilliValue),
		ShareMilli:  amount(cmp.Or(r.CPURequest, r.CPULimit), (*resource.Quantity).MilliValue), // as in a pod, the limit is the default request
		OOMScoreAdj: oomScoreAdj(pod, memory, nodeMemory()),
	}
}

// oomScoreAdj returns the score of a proxy with a memory request, in a pod on a node with a capacity.
func oomScoreAdj(pod *corev1.Pod, request, capacity int64) int64 {
	switch {
	case pod.Spec.PriorityClassName == nodeCritical || pod.Status.QOSClass == corev1.PodQOSGuaranteed:
		return guaranteedScore
	case pod.Status.QOSClass == corev1.PodQOSBestEffort || capacity == 0:
		return maxScore
	}
	var smallest int64
	for i, c := range pod.Spec.Containers {
		if own := memoryRequest(c.Resources); i == 0 || own < smallest {
			smallest = own
		}
	}
	request = max(request, smallest) + unassigned(pod)
	return min(max(maxScore-maxScore*request/capacity, maxScore+guaranteedScore), maxScore-1)
}

// unassigned returns a container's share of what a pod requests as a whole and its containers do not.
func unassigned(pod *corev1.Pod) int64 {
	if pod.Spec.Resources == nil {
		return 0
	}
	left := memoryRequest(*pod.Spec.Resources)
	for _, c := range pod.Spec.Containers {
		left -= memoryRequest(c.Resources)
	}
	for _, c := range pod.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			left -= memoryRequest(c.Resources)
		}
	}
	return max(left, 0) / int64(len(pod.Spec.Containers)+len(pod.Spec.InitContainers))
}

func memoryRequest(r corev1.ResourceRequirements) int64 { return r.Requests.Memory().Value() }

// nodeMemory returns the node's memory in bytes, 0 if the kernel does not say.
func nodeMemory() int64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return int64(info.Totalram) * int64(info.Unit)
}

func amount(q *resource.Quantity, value func(*resource.Quantity) int64) int64 {
	if q == nil {
		return 0
	}
	return value(q)
}
