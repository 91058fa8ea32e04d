package v1alpha1

// Istio names the control plane of a proxy that is Istio's own.
type Istio struct {
	// Revision of the control plane; empty for an Istio without revisions. The ConfigMaps istio-REVISION and istio-sidecar-injector-REVISION of its
	// namespace say how its proxies run.
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$`
	// +kubebuilder:validation:MaxLength=56
	// +optional
	Revision string `json:"revision,omitempty"`

	// Namespace of the control plane.
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:default=istio-system
	// +optional
	Namespace string `json:"namespace,omitempty"`
}

// ConfigMapKeys are keys of a ConfigMap of the pod's namespace.
type ConfigMapKeys struct {
	// Name of the ConfigMap. The chart's value sidecars.configMaps has to have it.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	Name string `json:"name"`

	// Keys are the keys that the proxy gets: all, if empty.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z0-9_-][A-Za-z0-9._-]*$`
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=set
	// +optional
	Keys []string `json:"keys,omitempty"`
}
