package check

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"istio-pod-network-controller/internal/printable"
)

// memoryRoom returns how much memory, in bytes, a pod's cgroup allows beyond what its containers may use themselves. limited is false if nothing
// limits the pod as a whole: then a proxy takes nothing away from them.
func memoryRoom(pod *corev1.Pod) (room int64, limited bool) {
	var sum int64
	for _, c := range slices.Concat(pod.Spec.Containers, slices.DeleteFunc(slices.Clone(pod.Spec.InitContainers), endsFirst)) {
		limit := c.Resources.Limits.Memory().Value()
		if limit == 0 {
			return 0, false // also with a limit of the pod, which it shares with the proxy as it comes
		}
		sum += limit
	}
	room = pod.Spec.Overhead.Memory().Value()
	if of := pod.Spec.Resources; of != nil && !of.Limits.Memory().IsZero() {
		room += of.Limits.Memory().Value() - sum
	}
	return room, true
}

// endsFirst reports whether an init container has ended before the others start.
func endsFirst(c corev1.Container) bool {
	return c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways
}

// proxyRoom names the pods whose memory limit leaves no room for the proxy that the agent runs in their cgroup.
func proxyRoom(f *Facts) finding {
	limited := func(p Pod) bool {
		_, own := f.ProxyMemory[p.Profile]
		return own && p.Running && p.MemoryLimited
	}
	tight := listed(f.Pods, func(p Pod) bool { return limited(p) && p.MemoryRoom < max(f.ProxyMemory[p.Profile], 1) }, func(p Pod) string {
		return fmt.Sprintf("%s (%s of %s)", p, bytes(p.MemoryRoom), wanted(f.ProxyMemory[p.Profile]))
	})
	room := len(names(f.Pods, limited))
	switch {
	case len(tight) > 0:
		return warning(fmt.Sprintf("the memory limit of %s leaves less room than the proxy may use, so the kernel may end one of their containers: %s", printable.Count(len(tight), "pod"), some(tight)),
			"give the pods more: a limit of the whole pod (spec.resources) above the sum of its containers' limits, or a RuntimeClass with an overhead; twice the proxy's memoryLimit lets an upgrade run both")
	case room == 0:
		return finding{}
	}
	return fine("room for the proxy in the memory limit of " + printable.Count(room, "pod"))
}

func bytes(n int64) string { return resource.NewQuantity(n, resource.BinarySI).String() }

func wanted(memory int64) string {
	if memory == 0 {
		return "memory without a limit"
	}
	return bytes(memory)
}
