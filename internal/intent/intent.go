// Package intent decides what a pod asks for: whether its traffic is redirected, why not, and how. It is the only parser of
// annotations, and does no I/O.
package intent

import (
	"errors"
	"net/netip"
	"path"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/iptables"
)

// Our own keys. Istio's are next to their parsers.
const (
	KeyInitialize   = "istio-pod-network-controller/initialize"
	KeyOutboundPort = "pod-network-controller.istio.io/envoy-port"
	KeyInboundPort  = "pod-network-controller.istio.io/envoy-inbound-port"
	KeyTunnelPort   = "pod-network-controller.istio.io/envoy-tunnel-port"
	KeyIPv6         = "pod-network-controller.istio.io/ipv6"
	KeyInboundPorts = "pod-network-controller.istio.io/inbound-ports"
)

// OpenShift's annotations on pods that it runs for itself.
const (
	keyDeployer = "openshift.io/deployer-pod-for.name"
	keyBuild    = "openshift.io/build.name"
)

// Intent is what a pod asks for.
type Intent struct {
	// Redirect reports whether the pod's traffic is redirected as Spec says.
	Redirect bool
	// Reason says why not.
	Reason Reason
	// Asked reports whether the pod's owner expects redirection and gets the Reason as a report: see expectsRedirection.
	Asked bool
	Spec  iptables.Spec
	// Hold is how long new connections wait for a proxy that does not listen; 0: they are refused.
	Hold time.Duration
	// Managed reports whether the agent runs the pod's proxy. Refused says why it does not although the pod has chosen a profile.
	// Profile is the pod's chosen profile. LeadsTo is the proxy that the rules lead to: of another profile if the pod keeps its proxy. Later reports
	// whether they do only once it is ready.
	Managed, Later bool
	Profile        string
	LeadsTo        *ManagedProxy
	Refused        string
	// Notes are settings that may not have the effect that their author expects, one sentence each.
	Notes []string
}

// Removes reports whether the pod's existing rules are removed. With any other Reason they stay: an edit of a namespace takes no rules from
// running pods.
func (i Intent) Removes() bool {
	return i.Reason == OptedOut || i.Reason == ModeNone || i.Reason == NoSidecar
}

// Selection says which pods are redirected.
type Selection string

// The selections: by our annotation, by Istio's injection as Istio's CNI plugin decides, or by either.
const (
	SelectAnnotation Selection = "annotation"
	SelectInjected   Selection = "injected"
	SelectEither     Selection = "either"
)

// Config holds the settings for all pods of the cluster.
type Config struct {
	Select             Selection
	ExcludedNamespaces []string
	AgentNamespace     string
	// UnsupportedHandlers are shell patterns (path.Match) of runtime handlers whose pods do not use the host kernel's network.
	UnsupportedHandlers []string
	// ClusterDNS are the name servers of pods with the cluster's DNS, for runtimes that do not report a sandbox's.
	ClusterDNS []netip.Addr
	Defaults   Defaults
	// Managed returns the proxy that the agent runs for a pod that has chosen a ProxyProfile, or with profile "" the proxy that a pod keeps which has
	// chosen none, nil if it has none. A nil function means that the agent runs none.
	Managed func(profile string, pod *corev1.Pod, ns *corev1.Namespace) *ManagedProxy
}

// Of returns what pod asks for. ns is its namespace, whose annotations are the defaults of its pods, or nil if unknown. An error is for the
// pod's owner to correct: an invalid setting, or settings that contradict each other.
func Of(pod *corev1.Pod, ns *corev1.Namespace, c Config) (Intent, error) { return c.of(pod, ns, nil) }

// of is Of, and records where the settings of a redirected pod come from.
func (c Config) of(pod *corev1.Pod, ns *corev1.Namespace, from sources) (Intent, error) {
	out := Intent{Asked: c.expectsRedirection(pod, ns), Reason: c.never(pod)}
	if out.Reason != "" {
		return out, nil
	}
	managed, profile, err := c.managed(pod, ns)
	if err != nil {
		return out, err
	}
	if managed != nil {
		out, err := c.ofManaged(pod, ns, managed, profile, from)
		from.managed(profile)
		return out, err
	}
	by, err := c.selects(pod, ns)
	if err != nil || by.reason != "" {
		out.Reason = by.reason
		if c.Managed != nil && by.reason != OptedOut && pod.Annotations[KeySidecar] == SidecarNone {
			out.Reason = NoSidecar
		}
		if c.Managed == nil && by.reason != "" && by.reason != OptedOut && namesProfile(pod) {
			out.Reason = SidecarsOff
		}
		return out, err
	}
	r := readerOf(pod, ns, c.Defaults, from)
	r.asIstio = by.injection
	if mode := r.lookup(keyMode, settingMode); mode.value == modeNone {
		out.Reason = ModeNone
		if mode.origin == fromNamespace {
			out.Reason = NamespaceModeNone
		}
		return out, nil
	}
	out.Spec, err = r.specOf(pod, c, nil)
	if err != nil {
		return Intent{Asked: out.Asked}, err
	}
	out.Redirect, out.Hold, out.Notes = true, r.holds, r.notes
	return out, nil
}

// Supports reports whether pods of a runtime handler use the host kernel's network, so that rules there have an effect.
func (c Config) Supports(handler string) bool {
	return !slices.ContainsFunc(c.UnsupportedHandlers, func(pattern string) bool {
		ok, err := path.Match(pattern, handler)
		return ok && err == nil
	})
}

// Asked reports whether the pod or its namespace asks for redirection, whatever the outcome is.
func Asked(pod *corev1.Pod, ns *corev1.Namespace) bool {
	own, set := pod.Annotations[KeyInitialize]
	return own == "true" || !set && annotationsOf(ns)[KeyInitialize] == "true"
}

// expectsRedirection reports whether the pod's owner expects redirection: the pod's own annotation says "true" or names a profile, or
// --select selects the pod. A namespace's annotation counts only for pods with a proxy: owners of jobs and databases do not expect
// it.
func (c Config) expectsRedirection(pod *corev1.Pod, ns *corev1.Namespace) bool {
	if own, set := pod.Annotations[KeyInitialize]; set {
		return own == "true"
	}
	if namesProfile(pod) {
		return true // whether the agent runs proxies or not
	}
	byNamespace := c.Select != SelectInjected && Asked(pod, ns) && findContainer(pod, ProxyContainer) != nil
	return byNamespace || c.Select != SelectAnnotation && injected(pod) == ""
}

// never returns why a pod can never be redirected, whatever its annotations are, or "".
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
	case hasIstioInit(pod):
		return IstioInit
	}
	return ""
}

// selection is why a pod is not selected, or how it is.
type selection struct {
	reason    Reason
	injection bool // not by our annotation: the rules of Istio's CNI plugin apply
}

// selects returns a selection without a reason if the pod is selected. The pod's own "false" always counts.
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

// annotationsOf returns the annotations of a namespace, or nil if it is not known.
func annotationsOf(ns *corev1.Namespace) map[string]string {
	if ns == nil {
		return nil
	}
	return ns.Annotations
}
