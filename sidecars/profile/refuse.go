package profile

import (
	"cmp"
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
	case pod.Annotations[corev1.MirrorPodAnnotationKey] != "" && showsToken(p):
		return "the pod is a static pod, which has no ServiceAccount: the proxy could not show by a token who it is; make a DaemonSet of it, or choose the profile none"
	}
	named := func(name string) bool {
		return slices.ContainsFunc(containers(pod), func(c *corev1.Container) bool { return c.Name == name })
	}
	switch {
	case named(istioProxy):
		return "the pod has a proxy of its own, the container " + istioProxy + ": take it out (label " + notInjected + " of the pod, if Istio injects it), or choose the profile none"
	case named(sidecar.ContainerName) && !p.Shared():
		return "the pod has a container with the name " + sidecar.ContainerName + ", which the proxy's container has: give it another name, or choose the profile none"
	}
	if c := runsAsProxy(p, pod); c != "" {
		if p.UID() == 0 {
			return fmt.Sprintf("container %q runs as group %d, which is the proxy's: its traffic would not be redirected; give it another runAsGroup", c, p.Spec.RunAsGroup)
		}
		return fmt.Sprintf("container %q runs as user %d, which is the proxy's: its traffic would not be redirected; give it another runAsUser", c, p.Spec.RunAsUser)
	}
	if c, port := collision(p, pod); c != "" {
		return fmt.Sprintf("container %q listens on port %d, which the proxy needs: let it use another one, or choose a profile with other ports", c, port)
	}
	return groupRefusal(p, pod)
}

// groupRefusal returns why the rules would take a container for a proxy that they know by its group, or "".
func groupRefusal(p *Version, pod *corev1.Pod) string {
	container, field := intent.TakesGroup(pod, p.Spec.RunAsGroup)
	if p.UID() != 0 || container == "" {
		return ""
	}
	return fmt.Sprintf("the pod's %s gives group %d, which is the proxy's, to container %q, too, which can act as it by a set-gid program: "+
		"choose another group for %s, or set allowPrivilegeEscalation to false in all containers", field, p.Spec.RunAsGroup, container, field)
}

// showsToken reports whether a proxy of the profile gets a token of the pod's ServiceAccount.
func showsToken(p *Version) bool {
	return p.Spec.Istio != nil || slices.ContainsFunc(p.Spec.Secrets, func(s v1alpha1.SecretSource) bool { return s.ServiceAccountToken != nil })
}

// runsAsProxy returns the name of a container that the rules would take for the proxy, or "". They know the proxy by its user, or, if that is
// root, by its group.
func runsAsProxy(p *Version, pod *corev1.Pod) string {
	group, of := p.UID() == 0, p.Spec.RunAsUser
	if group {
		of = p.Spec.RunAsGroup
	}
	var byDefault *int64
	if sc := pod.Spec.SecurityContext; sc != nil {
		byDefault = sc.RunAsUser
		if group {
			byDefault = sc.RunAsGroup
		}
	}
	for _, c := range containers(pod) {
		if id := cmp.Or(ownID(c, group), byDefault); id != nil && *id == of {
			return c.Name
		}
	}
	return ""
}

func ownID(c *corev1.Container, group bool) *int64 {
	switch {
	case c.SecurityContext == nil:
		return nil
	case group:
		return c.SecurityContext.RunAsGroup
	}
	return c.SecurityContext.RunAsUser
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
func containers(pod *corev1.Pod) (out []*corev1.Container) {
	for i := range pod.Spec.InitContainers {
		out = append(out, &pod.Spec.InitContainers[i])
	}
	for i := range pod.Spec.Containers {
		out = append(out, &pod.Spec.Containers[i])
	}
	return out
}
