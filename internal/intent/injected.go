package intent

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
)

// ProxyContainer is the name of the container that the proxy runs in.
const ProxyContainer = "istio-proxy"

const (
	keyInject   = "sidecar.istio.io/inject"
	keyInjected = "sidecar.istio.io/status"
)

// injected decides about a pod as Istio's CNI plugin does, so that the agent can replace it. "" means that the pod is redirected.
func injected(pod *corev1.Pod) Reason {
	proxy := findContainer(pod, ProxyContainer)
	// The label has precedence over the annotation. As in Istio, a value that is no bool counts as absent.
	inject, labelled := pod.Labels[keyInject]
	if !labelled {
		inject = pod.Annotations[keyInject]
	}
	refused, err := strconv.ParseBool(inject)
	_, status := pod.Annotations[keyInjected]
	switch {
	case proxy == nil:
		return NoProxyInject
	case boolEnv(proxy, envProxyless):
		return Proxyless
	case len(proxy.Args) >= 2 && proxy.Args[0] == "proxy" && proxy.Args[1] != "sidecar":
		return NotSidecar
	case err == nil && !refused:
		return InjectFalse
	case !status:
		return NotInjected
	}
	return ""
}

// findContainer looks at init containers first. Of several with the same name the last one counts, as in Istio.
func findContainer(pod *corev1.Pod, name string) *corev1.Container {
	var found *corev1.Container
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == name {
				found = &list[i]
			}
		}
	}
	return found
}

// boolEnv returns a Go bool from a container's environment, or false if it is absent or invalid.
func boolEnv(c *corev1.Container, name string) bool {
	value, _ := lookupEnv(c, name)
	on, err := strconv.ParseBool(value)
	return err == nil && on
}
