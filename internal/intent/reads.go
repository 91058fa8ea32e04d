package intent

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// readAnnotations are all annotations that Of reads.
func readAnnotations() []string {
	return []string{
		KeyInitialize, KeySidecar, KeyRestartProxy, KeyOutboundPort, KeyInboundPort, KeyTunnelPort, KeyDNSCapture, KeyIPv6, KeyInboundPorts,
		keyMode, keyIncludeCIDRs, keyExcludeCIDRs, keyIncludeInbound, keyExcludeInbound, keyIncludeOutbound, keyExcludeOutbound,
		keyExcludeInterfaces, keyReroute, keyKubevirt, keyInject, keyInjected, keyDeployer, keyBuild,
		KeyIncludeInboundPorts, KeyExcludeInboundPorts, KeyIncludeOutboundPorts, KeyExcludeOutboundPorts, KeyExcludeSources, KeyExcludeUsers,
		KeyForeignRules, KeyHoldSeconds, KeyEgressNames,
	}
}

// readEnv are all environment variables of the proxy's container that Of reads.
func readEnv() []string {
	return []string{envDNSCapture, envDropInvalid, envGroups, envGroupsExcept, envLoopback, envProxyless, envDualStack, envDNSAddr}
}

// readArgs is how many arguments of the proxy's container Of reads.
const readArgs = 2

// Reads reports whether Of reads an annotation.
func Reads(annotation string) bool { return slices.Contains(readAnnotations(), annotation) }

// ReadsOfNamespace reports whether Of reads an annotation of namespaces. What others write about one pod is not inherited.
func ReadsOfNamespace(annotation string) bool {
	return Reads(annotation) && !slices.Contains([]string{KeyRestartProxy, keyInject, keyInjected, keyDeployer, keyBuild}, annotation)
}

// Strip returns a pod with only what Of reads, and what decides whether the pod can have a proxy of the agent's: Of returns the same for both. The
// copy shares no memory with the pod except strings.
func Strip(pod *corev1.Pod) *corev1.Pod {
	out := &corev1.Pod{}
	out.Namespace, out.Name = pod.Namespace, pod.Name
	out.Annotations = Only(pod.Annotations, Reads)
	out.Labels = Only(pod.Labels, func(label string) bool { return label == keyInject })
	out.Status.Phase = pod.Status.Phase
	out.Spec = corev1.PodSpec{HostNetwork: pod.Spec.HostNetwork, HostPID: pod.Spec.HostPID, HostUsers: clone(pod.Spec.HostUsers), DNSPolicy: pod.Spec.DNSPolicy}
	if pod.Spec.OS != nil {
		out.Spec.OS = &corev1.PodOS{Name: pod.Spec.OS.Name}
	}
	if pod.Spec.DNSConfig != nil {
		out.Spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: slices.Clone(pod.Spec.DNSConfig.Nameservers)}
	}
	if sc := pod.Spec.SecurityContext; sc != nil {
		out.Spec.SecurityContext = &corev1.PodSecurityContext{
			RunAsUser: clone(sc.RunAsUser), RunAsGroup: clone(sc.RunAsGroup), FSGroup: clone(sc.FSGroup), SupplementalGroups: slices.Clone(sc.SupplementalGroups),
		}
	}
	for i := range pod.Spec.InitContainers {
		out.Spec.InitContainers = append(out.Spec.InitContainers, stripContainer(&pod.Spec.InitContainers[i]))
	}
	for i := range pod.Spec.Containers {
		out.Spec.Containers = append(out.Spec.Containers, stripContainer(&pod.Spec.Containers[i]))
	}
	for i := range pod.Spec.EphemeralContainers {
		c := &pod.Spec.EphemeralContainers[i]
		common := corev1.EphemeralContainerCommon{Name: c.Name, SecurityContext: stripContext(c.SecurityContext)}
		out.Spec.EphemeralContainers = append(out.Spec.EphemeralContainers, corev1.EphemeralContainer{EphemeralContainerCommon: common})
	}
	out.Status.InitContainerStatuses = stripStatuses(pod.Status.InitContainerStatuses)
	out.Status.ContainerStatuses = stripStatuses(pod.Status.ContainerStatuses)
	out.Status.EphemeralContainerStatuses = stripEphemeral(pod.Status.EphemeralContainerStatuses)
	return out
}

// stripStatuses keeps of containers as whom they run. Statuses change often: a status that says nothing of users is left out.
func stripStatuses(statuses []corev1.ContainerStatus) (out []corev1.ContainerStatus) {
	for i := range statuses {
		if user := StripUser(statuses[i].User); user != nil {
			out = append(out, corev1.ContainerStatus{Name: statuses[i].Name, User: user})
		}
	}
	return out
}

// stripEphemeral also keeps which containers have ended.
func stripEphemeral(statuses []corev1.ContainerStatus) (out []corev1.ContainerStatus) {
	for i := range statuses {
		s := corev1.ContainerStatus{Name: statuses[i].Name, User: StripUser(statuses[i].User)}
		if statuses[i].State.Terminated != nil {
			s.State.Terminated = &corev1.ContainerStateTerminated{}
		}
		out = append(out, s)
	}
	return out
}

// StripUser keeps the ids of a container's first process, or returns nil.
func StripUser(u *corev1.ContainerUser) *corev1.ContainerUser {
	if u == nil || u.Linux == nil {
		return nil
	}
	return &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{
		UID: u.Linux.UID, GID: u.Linux.GID, SupplementalGroups: slices.Clone(u.Linux.SupplementalGroups),
	}}
}

func stripPorts(ports []corev1.ContainerPort) (out []corev1.ContainerPort) {
	for _, port := range ports {
		out = append(out, corev1.ContainerPort{ContainerPort: port.ContainerPort, Protocol: port.Protocol})
	}
	return out
}

// Only returns the entries of a map whose keys are wanted.
func Only(in map[string]string, wanted func(key string) bool) map[string]string {
	var out map[string]string
	for key, value := range in {
		if wanted(key) {
			if out == nil {
				out = map[string]string{}
			}
			out[key] = value
		}
	}
	return out
}

// stripContainer keeps a container's name, its ports, its ids and whether it may gain more, and for the proxy, and what is named like it, also the
// arguments and variables that Of reads.
func stripContainer(c *corev1.Container) corev1.Container {
	out := corev1.Container{
		Name: c.Name, SecurityContext: stripContext(c.SecurityContext), RestartPolicy: clone(c.RestartPolicy), Ports: stripPorts(c.Ports),
	}
	if !strings.HasPrefix(c.Name, ProxyContainer) {
		return out
	}
	out.Args = slices.Clone(c.Args[:min(len(c.Args), readArgs)])
	for _, e := range c.Env {
		if slices.Contains(readEnv(), e.Name) {
			out.Env = append(out.Env, corev1.EnvVar{Name: e.Name, Value: e.Value})
		}
	}
	return out
}

func stripContext(sc *corev1.SecurityContext) *corev1.SecurityContext {
	if sc == nil || sc.RunAsUser == nil && sc.RunAsGroup == nil && sc.AllowPrivilegeEscalation == nil {
		return nil
	}
	return &corev1.SecurityContext{RunAsUser: clone(sc.RunAsUser), RunAsGroup: clone(sc.RunAsGroup), AllowPrivilegeEscalation: clone(sc.AllowPrivilegeEscalation)}
}

func clone[T any](v *T) *T {
	if v == nil {
		return nil
	}
	return new(*v)
}
