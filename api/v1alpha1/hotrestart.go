package v1alpha1

// HotRestart says how Envoys take over from each other.
type HotRestart struct {
	// OnIncompatibleVersion is what happens to a running Envoy if the new image's answers --hot-restart-version with another version, and so
	// cannot take over: Keep (the old one stays, and the Sidecar says why), or Replace (it is stopped first, connections are lost).
	// +kubebuilder:validation:Enum=Keep;Replace
	// +kubebuilder:default=Keep
	// +optional
	OnIncompatibleVersion string `json:"onIncompatibleVersion,omitempty"`
}

// IncompatibleReplace is the value of OnIncompatibleVersion with which an upgrade may cost connections.
const IncompatibleReplace = "Replace"
