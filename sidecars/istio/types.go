// Package istio computes how Istio's pilot-agent runs for a pod: what Istio's injector would write into the pod's spec.
//
// It reads the texts of the control plane's ConfigMaps and the pod, and asks nobody.
package istio

import corev1 "k8s.io/api/core/v1"

// Pod is the pod beside which a proxy runs.
type Pod struct {
	// Pod has its addresses and its node.
	Pod *corev1.Pod
	// Slot is 0 or 1: two proxies that run side by side for a while have different slots.
	Slot uint32
	// Revision and Namespace are the control plane's. An empty revision is the default.
	Revision, Namespace string
}

// Proxy is how pilot-agent runs.
type Proxy struct {
	Command, Args []string
	// Env has each name once. A profile's own variables win over it.
	Env []Variable
	// Files are contents by path in the proxy's container.
	Files map[string]string
	// Audience and TokenSeconds are those of the token in the file /var/run/secrets/tokens/istio-token.
	Audience     string
	TokenSeconds int64
	// RootCert is the ConfigMap at /var/run/secrets/istio, of the pod's namespace. Empty: no ConfigMap.
	RootCert string
	// StatusPort has the readiness at /healthz/ready. It differs by slot.
	StatusPort int32
	// NotHonoured are sentences: what injection would do for this pod and this proxy does not.
	NotHonoured []string
}

// Variable is one environment variable.
type Variable struct {
	Name, Value string
}
