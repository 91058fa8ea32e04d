package profile

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/sidecar"
)

// istioProxy is the container that Istio's injection adds to a pod's spec.
const istioProxy = "istio-proxy"

// notInjected is the label that keeps Istio from that.
const notInjected = `sidecar.istio.io/inject: "false"`

// Refusal returns why a pod cannot have a proxy of the profile, and what to do, or "". The pod itself starts and runs in any case.
func (p *Version) Refusal(pod *corev1.Pod, namespaceLabels map[string]string) string {
	if !p.namespaces.Matches(labels.Set(namespaceLabels)) {
		return fmt.Sprintf("the profile %s does not allow pods of the namespace %s: its namespaceSelector does not select it; choose another one", p.Name, pod.Namespace)
	}
	return p.Unfit(pod)
}

// Unfit is Refusal in a namespace that the profile allows.
func (p *Version) Unfit(pod *corev1.Pod) string {
	spec := &pod.Spec
	switch {
	case spec.HostNetwork:
		return "the pod is on the host's network: a proxy needs a network namespace of the pod's own; take hostNetwork out, or choose the profile none"
	case spec.HostPID:
		return "the pod sees the host's processes (hostPID), the proxy's among them: take hostPID out, or choose the profile none"
	case spec.HostUsers != nil && !*spec.HostUsers && p.Shared():
		return "the pod has a user namespace (hostUsers: false), in which the rules do not know the shared proxy by its group, and would lead its traffic back to it: take it out, or choose the profile none"
	case spec.OS != nil && spec.OS.Name == corev1.Windows:
		return "the pod is for Windows: choose the profile none"
	case intent.IsStatic(pod) && showsToken(p):
		return "the pod is a static pod, which has no ServiceAccount: the proxy could not show by a token who it is; make a DaemonSet of it, or choose the profile none"
	}
	named := func(name string) bool {
		return slices.ContainsFunc(containers(pod), func(c corev1.Container) bool { return c.Name == name })
	}
	switch {
	case named(istioProxy):
		return "the pod has a proxy of its own, the container " + istioProxy + ": take it out (label " + notInjected + " of the pod, if Istio injects it), or choose the profile none"
	case named(sidecar.ContainerName) && !p.Shared():
		return "the pod has a container with the name " + sidecar.ContainerName + ", which the proxy's container has: give it another name, or choose the profile none"
	}
	byGroup, id := p.UID() == 0, p.Spec.RunAsUser // the rules know the proxy by its user or, if that is root, by its group
	if byGroup {
		id = p.Spec.RunAsGroup
	}
	taker, field := intent.TakesID(pod, id, byGroup)
	switch c, port := collision(p, pod); {
	case taker != "" && field == "" && byGroup:
		return fmt.Sprintf("container %q runs as group %d, which is the proxy's: its traffic would not be redirected; give it another runAsGroup", taker, id)
	case taker != "" && field == "":
		return fmt.Sprintf("container %q runs as user %d, which is the proxy's: its traffic would not be redirected; give it another runAsUser", taker, id)
	case c != "":
		return fmt.Sprintf("container %q listens on port %d, which the proxy needs: let it use another one, or choose a profile with other ports", c, port)
	case taker != "":
		return fmt.Sprintf("the pod's %s gives group %d, which is the proxy's, to container %q, too, which can act as it by a set-gid program: "+
			"choose another group for %s, or set allowPrivilegeEscalation to false in all containers", field, id, taker, field)
	}
	return ""
}

// showsToken reports whether a proxy of the profile gets a token of the pod's ServiceAccount.
func showsToken(p *Version) bool {
	return p.Spec.Istio != nil || slices.ContainsFunc(p.Spec.Secrets, func(s v1alpha1.SecretSource) bool { return s.ServiceAccountToken != nil })
}

// collision returns the name of a container that declares one of the proxy's ports, and the port.
func collision(p *Version, pod *corev1.Pod) (name string, port int32) {
	taken := p.Ports()
	for _, c := range containers(pod) {
		for _, declared := range c.Ports {
			if declared.Protocol != corev1.ProtocolUDP && slices.Contains(taken, uint16(declared.ContainerPort)) {
				return c.Name, declared.ContainerPort
			}
		}
	}
	return "", 0
}

// containers returns the containers that a pod starts with. An ephemeral one would refuse the pod for good, since nothing takes it out of the spec:
// a note of the pod's intent names it.
func containers(pod *corev1.Pod) []corev1.Container {
	return slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
}
