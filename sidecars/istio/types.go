// Package istio computes how Istio's pilot-agent runs for a pod: what Istio's injector would write into the pod's spec.
//
// It reads the texts of the control plane's ConfigMaps and the pod, and asks nobody: objects of kind ProxyConfig, injection templates of the
// operator's own, parameters of the webhook's address and lists of revoked certificates (ConfigMap istio-ca-crl) have no effect.
//
// Facts about Istio are from its source, main of August 2026 (1.31). Comments name the file there.
package istio

import (
	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/api/v1alpha1"
)

// Pod is the pod beside which a proxy runs.
type Pod struct {
	// Pod has its node, its addresses and its host's address.
	Pod *corev1.Pod
	// Slot is 0 or 1: two proxies that run side by side for a while have different slots.
	Slot uint32
	// Network and Resources are what the pod's profile says.
	Network   v1alpha1.Network
	Resources v1alpha1.Resources
	// Beside reports whether the next proxy runs beside it for a while.
	Beside bool
	// Env are the profile's own variables, which win.
	Env []Variable
}

// Proxy is how pilot-agent runs.
type Proxy struct {
	Command, Args []string
	// Env has each name once, the pod's own variables included.
	Env []Variable
	// Files are contents by name in the directory /etc/istio/pod.
	Files map[string]string
	// Audience and TokenSeconds are for the token in the file /var/run/secrets/tokens/istio-token.
	Audience     string
	TokenSeconds int64
	// RootCert is the ConfigMap at /var/run/secrets/istio, of the pod's namespace. Empty: no ConfigMap.
	RootCert string
	// StatusPort is pilot-agent's, with the readiness at /healthz/ready. AdminPort is Envoy's, on localhost. Both differ by slot.
	//
	// On TERM pilot-agent has Envoy drain inbound listeners only (pkg/envoy/admin.go: drain_listeners?inboundonly&graceful), and a graceful
	// drain accepts connections until ProxyConfig.drainDuration is over: the old of two proxies goes on taking new connections, outbound
	// ones for ever. POST /drain_listeners?graceful tells clients of both directions, POST /drain_listeners then stops all listeners.
	StatusPort, AdminPort int32
	// NotHonoured are sentences: what injection would do for this pod and this proxy does not.
	NotHonoured []string
}

// Variable is one environment variable.
type Variable struct {
	Name, Value string
}
