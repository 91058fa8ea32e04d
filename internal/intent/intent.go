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
	KeyIPv6         = "pod-network-controller.istio.io/ipv6"
)

// OpenShift's signs of pods that it runs for itself.
const (
	keyDeployer = "openshift.io/deployer-pod-for.name"
	keyBuild    = "openshift.io/build.name"
)

// Intent is what a pod asks for.
type Intent struct {
	// Redirect reports whether the pod's traffic is to be redirected by Spec.
	Redirect bool
	// Reason says why not.
	Reason Reason
	// Asked reports whether the pod's owner expects redirection, so that a Reason is news to him: see asked.
	Asked bool
	Spec  iptables.Spec
	// Notes are settings that do not have the effect that their author may expect, one sentence each.
	Notes []string
}

// Removes reports whether rules that the pod was given are to be taken away. By any other Reason they stay.
func (i Intent) Removes() bool { return i.Reason == OptedOut || i.Reason == ModeNone }

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
// An error is the pod owner's to mend: a setting that means nothing, or settings that do not fit together.
func Of(pod *corev1.Pod, ns *corev1.Namespace, c Config) (Intent, error) {
	out := Intent{Asked: c.asked(pod, ns), Reason: c.never(pod)}
	if out.Reason != "" {
		return out, nil
	}
	by, err := c.selects(pod, ns)
	if err != nil || by.reason != "" {
		out.Reason = by.reason
		return out, err
	}
	r := reader{annotations: pod.Annotations, asIstio: by.injection}
	if r.value(keyMode, c.Defaults.InterceptionMode) == modeNone {
		out.Reason = ModeNone
		return out, nil
	}
	out.Spec, err = r.specOf(pod, c)
	if err != nil {
		return Intent{Asked: out.Asked}, err
	}
	out.Redirect, out.Notes = true, r.notes
	return out, nil
}

// Supports reports whether pods of a runtime handler use the host kernel's network, so that rules in it mean something.
func (c Config) Supports(handler string) bool {
	return !slices.ContainsFunc(c.UnsupportedHandlers, func(pattern string) bool {
		ok, err := path.Match(pattern, handler)
		return ok && err == nil
	})
}

// Asked reports whether the pod itself or its namespace wants redirection, whatever else may stand against it.
func Asked(pod *corev1.Pod, ns *corev1.Namespace) bool {
	own, asked := pod.Annotations[KeyInitialize]
	return own == "true" || !asked && ns != nil && ns.Annotations[KeyInitialize] == "true"
}

// asked reports whether the pod's owner expects redirection: the pod's own annotation says "true", or a sign that --select
// goes by covers it. A namespace's annotation covers pods with a proxy only: those without one (jobs, databases) never meant
// to be redirected.
func (c Config) asked(pod *corev1.Pod, ns *corev1.Namespace) bool {
	if own, set := pod.Annotations[KeyInitialize]; set {
		return own == "true"
	}
	byNamespace := c.Select != SelectInjected && Asked(pod, ns) && findContainer(pod, ProxyContainer) != nil
	return byNamespace || c.Select != SelectAnnotation && injected(pod) == ""
}

// never are the pods that nothing they say can make ours.
func (c Config) never(pod *corev1.Pod) Reason {
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
	}
	return ""
}

// selection is why a pod is not one of ours, or by which sign it is.
type selection struct {
	reason    Reason
	injection bool // not by our annotation: Istio's rules for its CNI plugin hold
}

// selects gives no reason for a pod that is one of ours. The pod's own "false" counts whatever the selection.
func (c Config) selects(pod *corev1.Pod, ns *corev1.Namespace) (selection, error) {
	own, set := pod.Annotations[KeyInitialize]
	if set && own != "true" && own != "false" {
		return selection{}, &ValueError{Key: KeyInitialize, Value: own, Want: `"true" or "false"`}
	}
	if own == "false" {
		return selection{reason: OptedOut}, nil
	}
	byAnnotation := selection{reason: annotated(pod, ns)}
	switch c.Select {
	case SelectInjected:
		return selection{reason: injected(pod), injection: true}, nil
	case SelectEither:
		if byAnnotation.reason == "" {
			return byAnnotation, nil
		}
		return selection{reason: injected(pod), injection: true}, nil
	case SelectAnnotation:
		return byAnnotation, nil
	}
	return selection{}, errors.New("select pods: unknown selection " + string(c.Select))
}

func annotated(pod *corev1.Pod, ns *corev1.Namespace) Reason {
	_, deployer := pod.Annotations[keyDeployer]
	_, build := pod.Annotations[keyBuild]
	switch {
	case !Asked(pod, ns):
		return NotAsked
	case deployer:
		return DeployerPod
	case build:
		return BuildPod
	case pod.Annotations[KeyInitialize] != "true" && findContainer(pod, ProxyContainer) == nil:
		return NoProxy
	}
	return ""
}
