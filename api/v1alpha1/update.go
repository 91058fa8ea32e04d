package v1alpha1

// Update says how a new version of the profile reaches the running proxies of a container.
type Update struct {
	Rollout `json:",inline"`

	// No default here, nor in IstioUpdate: it would be stored, and the next one who applies another way would have two.

	// Handover is how a new proxy takes over from a running one, which finishes its connections. Without it there is none.
	Handover *Handover `json:"handover,omitempty"`
}

// Handover is how a new proxy takes over from a running one: exactly one way.
//
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:MaxProperties=1
type Handover struct {
	// None stops the old proxy first: connections are lost.
	None *NoHandover `json:"none,omitempty"`

	// HAProxy passes the listeners through an admin socket, which the template opens at .HandoverSocket.
	HAProxy *HAProxyHandover `json:"haproxy,omitempty"`

	// ReusePort is for proxies that listen with SO_REUSEPORT: both serve until the new one is ready, and then the old one gets a signal. Probes
	// ask a proxy of slot 1 (.Slot in the templates) at the port after theirs. Those of a socket need {epoch} in its name.
	ReusePort *ReusePort `json:"reusePort,omitempty"`

	// EnvoyHotRestart is Envoy's own way. Its admin interface has to be the unix socket .AdminSocket.
	EnvoyHotRestart *EnvoyHotRestart `json:"envoyHotRestart,omitempty"`
}

// NoHandover has no settings.
type NoHandover struct{}

// HAProxyHandover has no settings.
type HAProxyHandover struct{}

// ReusePort says how proxies that listen side by side give way.
type ReusePort struct {
	// StopSignal has a proxy close its listeners, finish its connections and end: QUIT for nginx, USR1 for HAProxy.
	// +kubebuilder:validation:Enum=HUP;INT;QUIT;TERM;USR1;USR2;WINCH
	StopSignal string `json:"stopSignal"`
}

// EnvoyHotRestart says how Envoys take over from each other.
type EnvoyHotRestart struct {
	// OnIncompatibleVersion is what happens to a running Envoy if the new image's answers --hot-restart-version with another version, and so
	// cannot take over: Keep (the old one stays, and the ManagedProxy says why), or Replace (it is stopped first, connections are lost).
	// +kubebuilder:validation:Enum=Keep;Replace
	// +kubebuilder:default=Keep
	OnIncompatibleVersion string `json:"onIncompatibleVersion,omitempty"`
}

// IncompatibleReplace is the value of OnIncompatibleVersion with which an upgrade may cost connections.
const IncompatibleReplace = "Replace"

// IstioUpdate says how a new version of the profile reaches Istio's running proxies.
type IstioUpdate struct {
	Rollout `json:",inline"`

	// Handover is how a new proxy takes over from a running one, which finishes its connections. Without it that is reusePort.
	Handover *IstioHandover `json:"handover,omitempty"`
}

// IstioHandover is how a new proxy of Istio takes over from a running one: exactly one way.
//
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:MaxProperties=1
type IstioHandover struct {
	// None stops the old proxy first: connections are lost.
	None *NoHandover `json:"none,omitempty"`

	// ReusePort has both serve until the new one is ready, and the old one end then, by TERM.
	ReusePort *IstioReusePort `json:"reusePort,omitempty"`
}

// IstioReusePort has no settings.
type IstioReusePort struct{}

// Rollout bounds how a new version of the profile reaches proxies: of one node, and the nodes of the cluster.
type Rollout struct {
	// DrainSeconds is how long an old proxy may finish its connections after an upgrade. An Envoy gets it as --parent-shutdown-time-s, and
	// two thirds of it as --drain-time-s.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	// +kubebuilder:default=45
	DrainSeconds int32 `json:"drainSeconds,omitempty"`
	// MaxParallel is how many proxies of a node are upgraded at the same time.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=2
	MaxParallel int32 `json:"maxParallel,omitempty"`
	// PauseOnFailure stops the upgrades of a node once new proxies of this version have failed there in three pods, or in all pods if there
	// are fewer, with no success between. The pods whose proxies failed are tried again; a success ends the pause.
	// +kubebuilder:default=true
	PauseOnFailure *bool `json:"pauseOnFailure,omitempty"`
	// MaxNodes is on how many nodes at the same time not all proxies are of a new version yet: the other nodes keep the version that was ready
	// there last. While upgrades are paused after failures on one of these nodes, no other node begins. Without it all nodes begin at once.
	// +kubebuilder:validation:Minimum=1
	MaxNodes int32 `json:"maxNodes,omitempty"`
	// Partition is how many of the profile's nodes do not begin with a new version: they keep the last version, for the others to try the new
	// version first. Lower it to go on, at last to 0.
	// +kubebuilder:validation:Minimum=0
	Partition int32 `json:"partition,omitempty"`
	// PartitionPercent is the same as a share of the nodes, rounded up. The greater of both counts.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	PartitionPercent int32 `json:"partitionPercent,omitempty"`
	// Paused has no further node begin with a new version. Nodes that maxNodes has let begin go on; without maxNodes none does.
	Paused bool `json:"paused,omitempty"`
}
