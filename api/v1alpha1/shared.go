package v1alpha1

// Shared is one proxy for all pods of a node that choose the profile, and how a new configuration is put into force in it.
//
// The proxy finds its files in /etc/sidecar/current, files to be checked in /etc/sidecar/next, and answers a GET on the unix socket
// /run/sidecar/version.sock with the version that its configuration has (.Version in the templates). It is ready for a pod once it has answered
// the version of a configuration with that pod.
type Shared struct {
	// Files are the configuration of the proxy, for all pods of the node at once.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	Files []File `json:"files"`

	// Check is a command that ends with code 0 if the files in /etc/sidecar/next can be used. It runs in the proxy's container.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=4096
	// +listType=atomic
	Check []string `json:"check"`

	// ReloadSignal is sent to the first process of the proxy's container once /etc/sidecar/current has changed. Without it the proxy sees
	// the change itself.
	// +kubebuilder:validation:Enum=HUP;USR1;USR2
	ReloadSignal string `json:"reloadSignal,omitempty"`

	// RunAsGroup is the proxy's group ID, which no container of the pods may have. The chart's value proxies.shared has to have the same: pods do
	// not join a proxy that runs as another group.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	// +kubebuilder:default=1337
	RunAsGroup int64 `json:"runAsGroup,omitempty"`
}
