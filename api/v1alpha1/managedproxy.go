package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The labels of ManagedProxies.
const (
	// LabelNode is the name of the node, to select its ManagedProxies by.
	LabelNode = Group + "/node"
	// LabelProfile is the name of the profile.
	LabelProfile = Group + "/profile"
)

// ManagedProxy shows one pod's proxy. The agent of the pod's node writes it, the pod owns it, and it has the pod's name.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Namespaced,shortName=mpx,categories=pod-network
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Profile",type=string,JSONPath=`.spec.profile`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Ready",type=boolean,JSONPath=`.status.ready`
// +kubebuilder:printcolumn:name="Epoch",type=integer,JSONPath=`.status.epoch`
// +kubebuilder:printcolumn:name="Restarts",type=integer,JSONPath=`.status.restarts`
// +kubebuilder:printcolumn:name="Image",type=string,JSONPath=`.status.image`,priority=1
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.node`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ManagedProxy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   ManagedProxySpec   `json:"spec"`
	Status ManagedProxyStatus `json:"status,omitempty"`
}

// ManagedProxyList is a list of ManagedProxies.
//
// +kubebuilder:object:root=true
type ManagedProxyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ManagedProxy `json:"items"`
}

// ManagedProxySpec says which proxy the object is about. It does not change.
//
// +kubebuilder:validation:XValidation:rule="self.pod == oldSelf.pod && self.podUID == oldSelf.podUID && self.node == oldSelf.node",message="a ManagedProxy stays with its pod"
type ManagedProxySpec struct {
	Profile string `json:"profile"`
	Pod     string `json:"pod"`
	PodUID  string `json:"podUID"`
	Node    string `json:"node"`
}

// MaxMessage bounds a message, in bytes, as the schema does in characters.
const MaxMessage = 4096

// State is what a proxy does.
//
// +kubebuilder:validation:Enum=Pulling;Starting;Running;Upgrading;Failed;Refused;Ended
type State string

// The states of a proxy.
const (
	Pulling   State = "Pulling"   // the image is being fetched
	Starting  State = "Starting"  // the proxy runs and is not ready yet
	Running   State = "Running"   // the proxy is ready
	Upgrading State = "Upgrading" // a new proxy starts beside the ready one
	Failed    State = "Failed"    // the proxy cannot be started, or it has ended; it is tried again
	Refused   State = "Refused"   // the pod or its profile has to be changed first
	Ended     State = "Ended"     // the pod has finished, and its proxy with it, or the proxy itself has and is not started again
)

// ManagedProxyStatus is how the proxy is.
type ManagedProxyStatus struct {
	State State `json:"state,omitempty"`
	// Ready reports whether the proxy answers and the pod's traffic is redirected to it.
	// +optional
	Ready bool `json:"ready"`
	// Sandbox is the runtime's ID of the pod's sandbox.
	Sandbox string `json:"sandbox,omitempty"`
	// Epoch counts the pod's proxies, from 0.
	// +optional
	Epoch int32 `json:"epoch"`
	// Image that the ready proxy runs, or the newest if none is ready.
	Image string `json:"image,omitempty"`
	// ProfileHash identifies the version of the profile that the proxy runs.
	ProfileHash string `json:"profileHash,omitempty"`
	// FailedHash identifies the version of the profile that the pod should have a proxy of, if that could not be started, or the pod cannot
	// have one.
	FailedHash string `json:"failedHash,omitempty"`
	// Paused reports whether the node's agent begins no other upgrade of the profile after such failures.
	Paused bool `json:"paused,omitempty"`
	// Restarts counts the proxies that ended without being asked to.
	// +optional
	Restarts int32 `json:"restarts"`
	// Message says what to do, or why the last proxy ended: exit code and its last words.
	// +kubebuilder:validation:MaxLength=4096
	Message string `json:"message,omitempty"`

	// The rule has the API server parse the time, as for a profile's conditions.

	// LastUpgrade is when the ready proxy took over from an older one.
	// +kubebuilder:validation:XValidation:rule="self > timestamp('1970-01-01T00:00:00Z')",message="lastUpgrade is no time"
	LastUpgrade *metav1.Time `json:"lastUpgrade,omitempty"`
}
