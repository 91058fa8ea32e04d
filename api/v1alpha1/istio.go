package v1alpha1

// Istio is Istio's own proxy. What Istio's injector would write is computed for each new proxy from the control plane's ConfigMaps and the pod. Image
// is Istio's (proxyv2), of the control plane's version.
type Istio struct {
	Process `json:",inline"`

	// Revision of the control plane; empty for an Istio without revisions. The ConfigMaps istio-REVISION and istio-sidecar-injector-REVISION of its
	// namespace say how its proxies run.
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$`
	// +kubebuilder:validation:MaxLength=56
	Revision string `json:"revision,omitempty"`

	// Namespace of the control plane.
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:default=istio-system
	Namespace string `json:"namespace,omitempty"`

	// Transparent captures inbound connections with TPROXY (Istio's interception mode of that name): see the container's field.
	Transparent bool `json:"transparent,omitempty"`

	// Readiness says when the proxy is asked at its status port, and how often it may miss.
	// +kubebuilder:default={}
	Readiness IstioReadiness `json:"readiness,omitempty"`

	// Update says how a new version of the profile reaches the running proxies.
	// +kubebuilder:default={}
	Update IstioUpdate `json:"update,omitempty"`
}

// ConfigMapKeys are keys of a ConfigMap of the pod's namespace.
type ConfigMapKeys struct {
	// Name of the ConfigMap. The chart's value proxies.configMaps has to have it.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	Name string `json:"name"`

	// Keys are the keys that the proxy gets: all, if empty.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z0-9_-][A-Za-z0-9._-]*$`
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=set
	Keys []string `json:"keys,omitempty"`

	// Optional lets the proxy be made without the ConfigMap: its directory is empty until there is one.
	Optional bool `json:"optional,omitempty"`
}
