package intent

// Reason says why a pod is left alone, and what its owner can do about it.
type Reason string

// The reasons. The first ones hold whatever the pod's annotations are.
const (
	HostNetwork       Reason = "the pod uses the node's network (hostNetwork), which is never redirected; give it a network of its own"
	Finished          Reason = "the pod has finished: there is nothing left to redirect"
	Windows           Reason = "the pod runs on Windows, where there are no such rules"
	AgentNamespace    Reason = "the pod is in the agent's own namespace, which is never redirected; move it to another one"
	ExcludedNamespace Reason = "the pod's namespace is excluded by the agent's --exclude-namespaces; move the pod, or have the list changed"
	IstioInit         Reason = "istio-init programs this pod's rules already; to have the agent do it, install Istio with pilot.cni.enabled=true and re-create the pod"

	OptedOut Reason = `the pod opts out by its annotation ` + KeyInitialize + `: "false"; set it to "true" to have its traffic redirected`
	ModeNone Reason = "the interception mode is NONE, which redirects nothing; set annotation " + keyMode + " to REDIRECT or TPROXY to have traffic redirected"
	// NamespaceModeNone is ModeNone by the namespace's annotation.
	NamespaceModeNone Reason = "the interception mode is NONE by the namespace's annotation " + keyMode + ", which redirects nothing in new pods; set it to REDIRECT or TPROXY, there or on the pod, to have traffic redirected"

	NoSidecar   Reason = `the pod has no proxy of the agent's by its annotation ` + KeySidecar + `: "none"; name a ProxyProfile to have one`
	SidecarsOff Reason = `the pod names a ProxyProfile by its annotation ` + KeySidecar + `, and the agent runs no proxies (--sidecars); have that switched on, or give the pod a proxy and ` + KeyInitialize + `: "true"`
	NotAsked    Reason = `neither the pod nor its namespace has the annotation ` + KeyInitialize + `: "true"; set it to have traffic redirected`
	NoProxy     Reason = `only the namespace asks, and the pod has no container ` + ProxyContainer + `; if its proxy has another name, annotate the pod itself with ` + KeyInitialize + `: "true"`
	DeployerPod Reason = "the pod is an OpenShift deployer, which is redirected only where Istio has injected it and the agent's --select says so"
	BuildPod    Reason = "the pod is an OpenShift build, which is redirected only where Istio has injected it and the agent's --select says so"

	NoProxyInject Reason = "the agent takes pods that Istio has injected (--select), and this one has no container " + ProxyContainer + "; have Istio inject it"
	NotInjected   Reason = "the agent takes pods that Istio has injected (--select), and this one lacks the annotation " + keyInjected + "; have Istio inject it"
	InjectFalse   Reason = "the pod refuses Istio's injection: its label or annotation " + keyInject + " is false; set it to true to have traffic redirected"
	Proxyless     Reason = "the pod's proxy is switched off by DISABLE_ENVOY in container " + ProxyContainer + ": there is nothing to redirect to"
	NotSidecar    Reason = "the pod's proxy is no sidecar but a gateway or waypoint (arguments of container " + ProxyContainer + "), to which nothing is redirected"

	UnsupportedRuntime Reason = "the pod's runtime class does not use the node's kernel for its network (--unsupported-runtime-handlers); choose another one to have traffic redirected"
)

// Chosen reports whether the pod is left alone because somebody has decided so.
func (r Reason) Chosen() bool {
	return r == IstioInit || r == OptedOut || r == ModeNone || r == NamespaceModeNone
}
