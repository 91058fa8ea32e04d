// Package intent tells what a pod asks for: whether its traffic is to be redirected, why not, and how. It is the only
// parser of annotations, and pure.
package intent

import (
	"errors"
	"net/netip"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/iptables"
)

// Keys of our own; the rest are Istio's and stand beside their parsers.
const (
	KeyInitialize   = "istio-pod-network-controller/initialize"
	KeyOutboundPort = "pod-network-controller.istio.io/envoy-port"
	KeyInboundPort  = "pod-network-controller.istio.io/envoy-inbound-port"
	KeyTunnelPort   = "pod-network-controller.istio.io/envoy-tunnel-port"
)

// Intent is what a pod asks for.
type Intent struct {
	// Redirect tells whether the pod's traffic is to be redirected by Spec.
	Redirect bool
	// Reason says why not.
	Reason Reason
	Spec   iptables.Spec
}

// Reason says in a few words why a pod is left alone.
type Reason string

// The reasons, in the order in which they are looked at.
const (
	HostNetwork        Reason = "the pod uses the host's network"
	Finished           Reason = "the pod has finished"
	Windows            Reason = "the pod runs on Windows"
	AgentNamespace     Reason = "the pod belongs to the agent's own namespace"
	ExcludedNamespace  Reason = "the pod's namespace is excluded by --exclude-namespaces"
	IstioInit          Reason = "the pod programs itself: it has an istio-init container"
	DeployerPod        Reason = "the pod is an OpenShift deployer"
	BuildPod           Reason = "the pod is an OpenShift build"
	OptedOut           Reason = `the pod opts out: its annotation ` + KeyInitialize + ` is "false"`
	NotAsked           Reason = `neither the pod nor its namespace is annotated ` + KeyInitialize + `="true"`
	NoProxy            Reason = "only the namespace asks, and the pod has no istio-proxy container"
	UnsupportedRuntime Reason = "the pod's runtime handler does not use the host kernel's network (--unsupported-runtime-handlers)"

	NotInjected   Reason = "the pod was not injected by Istio: it has no annotation sidecar.istio.io/status"
	InjectFalse   Reason = "the pod's sidecar.istio.io/inject is false"
	Proxyless     Reason = "the pod's proxy is switched off by DISABLE_ENVOY"
	NotSidecar    Reason = "the pod's proxy is no sidecar"
	NoProxyInject Reason = "the pod has no istio-proxy container"
)

// Selection says which sign makes a pod one of ours.
type Selection string

// The selections: our own annotation, Istio's injection as its CNI plugin judges it, or one of both.
const (
	SelectAnnotation Selection = "annotation"
	SelectInjected   Selection = "injected"
	SelectEither     Selection = "either"
)

// Config is what holds for every pod of the cluster.
type Config struct {
	Select             Selection
	ExcludedNamespaces []string
	AgentNamespace     string
	// UnsupportedHandlers are shell patterns (path.Match) of runtime handlers whose pods have a network of their own.
	UnsupportedHandlers []string
	// ClusterDNS are the name servers of pods that use the cluster's, for runtimes that do not tell a sandbox's.
	ClusterDNS []netip.Addr
	Defaults   Defaults
}

// Of tells what pod asks for; ns is its namespace, of which only name and annotations count, or nil where it is not known.
// An error is the pod owner's to mend: an annotation whose value means nothing.
func Of(pod *corev1.Pod, ns *corev1.Namespace, c Config) (Intent, error) {
	if reason := c.never(pod); reason != "" {
		return Intent{Reason: reason}, nil
	}
	reason, err := c.selects(pod, ns)
	if err != nil || reason != "" {
		return Intent{Reason: reason}, err
	}
	spec, err := specOf(pod, c)
	if err != nil {
		return Intent{}, err
	}
	return Intent{Redirect: true, Spec: spec}, nil
}

// Supports tells whether pods of a runtime handler use the host kernel's network, so that rules in it mean something.
func (c Config) Supports(handler string) bool {
	return !slices.ContainsFunc(c.UnsupportedHandlers, func(pattern string) bool {
		ok, err := path.Match(pattern, handler)
		return ok && err == nil
	})
}

// Asked tells whether the pod itself or its namespace wants redirection, whatever else may stand against it.
func Asked(pod *corev1.Pod, ns *corev1.Namespace) bool {
	own, asked := pod.Annotations[KeyInitialize]
	return own == "true" || !asked && ns != nil && ns.Annotations[KeyInitialize] == "true"
}

// never are the pods that nothing they say can make ours.
func (c Config) never(pod *corev1.Pod) Reason {
	_, deployer := pod.Annotations["openshift.io/deployer-pod-for.name"]
	_, build := pod.Annotations["openshift.io/build.name"]
	switch {
	case pod.Spec.HostNetwork:
		return HostNetwork
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return Finished
	case pod.Spec.OS != nil && pod.Spec.OS.Name == corev1.Windows:
		return Windows
	case c.AgentNamespace != "" && pod.Namespace == c.AgentNamespace:
		return AgentNamespace
	case slices.Contains(c.ExcludedNamespaces, pod.Namespace):
		return ExcludedNamespace
	case findContainer(pod, "istio-init") != nil:
		return IstioInit
	case deployer:
		return DeployerPod
	case build:
		return BuildPod
	}
	return ""
}

// selects gives "" for a pod that is one of ours. The pod's own "false" counts whatever the selection.
func (c Config) selects(pod *corev1.Pod, ns *corev1.Namespace) (Reason, error) {
	own, set := pod.Annotations[KeyInitialize]
	if set && own != "true" && own != "false" {
		return "", &ValueError{Key: KeyInitialize, Value: own, Want: `"true" or "false"`}
	}
	if own == "false" {
		return OptedOut, nil
	}
	byAnnotation := annotated(pod, ns)
	switch c.Select {
	case SelectInjected:
		return injected(pod), nil
	case SelectEither:
		if byAnnotation == "" {
			return "", nil
		}
		return injected(pod), nil
	case SelectAnnotation:
		return byAnnotation, nil
	}
	return "", errors.New("select pods: unknown selection " + string(c.Select))
}

func annotated(pod *corev1.Pod, ns *corev1.Namespace) Reason {
	switch {
	case !Asked(pod, ns):
		return NotAsked
	case pod.Annotations[KeyInitialize] != "true" && findContainer(pod, ProxyContainer) == nil:
		return NoProxy
	}
	return ""
}
