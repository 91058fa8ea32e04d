package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ProxyProfile says how the node's agents run a proxy for each pod that chooses the profile. Whoever may write one can run any program
// on every node.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=mpp,categories=pod-network
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Image",type=string,JSONPath=`.spec['container','istio'].image`
// +kubebuilder:printcolumn:name="Pods",type=integer,JSONPath=`.status.pods`
// +kubebuilder:printcolumn:name="Upgraded",type=integer,JSONPath=`.status.upgraded`
// +kubebuilder:printcolumn:name="Failed",type=integer,JSONPath=`.status.failed`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Upgraded")].reason`
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.nodeCount`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Upgraded")].message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ProxyProfile struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   ProxyProfileSpec   `json:"spec"`
	Status ProxyProfileStatus `json:"status,omitempty"`
}

// ProxyProfileStatus is how far a profile has reached the proxies of the cluster. One agent counts the ManagedProxies and writes it; why a
// proxy failed stands in its ManagedProxy.
type ProxyProfileStatus struct {
	// ObservedGeneration is the profile's version that the counts are about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration"`
	// Pods counts the pods that have chosen the profile, Upgraded those whose proxy is ready and of this version, and Failed those whose
	// proxy of this version could not be started, or that cannot have one.
	// +optional
	Pods int32 `json:"pods"`
	// +optional
	Upgraded int32 `json:"upgraded"`
	// +optional
	Failed int32 `json:"failed"`

	// Not nodes: earlier builds have stored a list by that name.

	// NodeCount counts the nodes of these pods, and NodesPaused those whose upgrades are paused after failures.
	// +optional
	NodeCount int32 `json:"nodeCount"`
	// +optional
	NodesPaused int32 `json:"nodesPaused"`

	// Rollout says which nodes may use the present version. It is there while update has maxNodes, a partition or paused: otherwise all may.
	// +optional
	Rollout *RolloutStatus `json:"rollout"` // null takes it away in a merge patch

	// The format date-time passes texts that Go cannot decode, and one list reads all profiles. The rule has the API server parse each time.

	// Conditions sum up the counts, as those of a Deployment do: Upgraded, Progressing and Failed.
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:XValidation:rule="self.all(c, c.lastTransitionTime > timestamp('1970-01-01T00:00:00Z'))",message="lastTransitionTime is no time"
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// RolloutStatus says which nodes may use a version of the profile. Each node has a slot for each version, from 0 to 65535, which its name and the
// version's hash decide: one number is enough for a cluster of any size.
type RolloutStatus struct {
	// Hash is the version.
	// +kubebuilder:validation:MaxLength=64
	Hash string `json:"hash"`
	// Admitted lets the nodes with a lower slot use the version: 0 is no node, 65536 are all.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65536
	Admitted int32 `json:"admitted"`
}

// The conditions of a ProxyProfile. All have the same reason and message.
const (
	// ConditionUpgraded reports whether all proxies are ready and of the profile's present version.
	ConditionUpgraded = "Upgraded"
	// ConditionProgressing is True while proxies are upgraded, and once all are. It is False if every proxy that is not upgraded has failed, or waits: for
	// a failed one to succeed, or for the end of update.paused.
	ConditionProgressing = "Progressing"
	// ConditionFailed reports whether proxies of the present version could not be started, or cannot be had by their pods.
	ConditionFailed = "Failed"
)

// The reasons of a ProxyProfile's conditions.
const (
	ReasonUpgraded  = "Upgraded"  // all proxies are
	ReasonInvalid   = "Invalid"   // the profile cannot be used; pods have its last version that could be
	ReasonNoPods    = "NoPods"    // there are none
	ReasonUpgrading = "Upgrading" // some are not yet
	ReasonFailed    = "Failed"    // some could not be, and are tried again, or their pods have to be changed
	ReasonPaused    = "Paused"    // some could not be, and on their nodes no others are upgraded until one succeeds; or update.paused holds nodes back
)

// ProxyProfileList is a list of ProxyProfiles.
//
// +kubebuilder:object:root=true
type ProxyProfileList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ProxyProfile `json:"items"`
}

// ProxyProfileSpec is how a proxy is run, and for whom. Exactly one of container, istio and shared says which kind of proxy it is.
//
// +kubebuilder:validation:XValidation:rule="[has(self.container), has(self.istio), has(self.shared)].filter(x, x).size() == 1",message="exactly one of container, istio and shared: image, mode, handover and what else earlier builds read in spec itself belongs in one of these"
// +kubebuilder:validation:XValidation:rule="has(self.shared) == has(oldSelf.shared)",message="shared is neither added nor removed later, as two proxies would serve the same pods: make another profile, and have the pods choose it"
// +kubebuilder:validation:XValidation:rule="!has(self.shared) || !has(oldSelf.shared) || self.network.outboundPort == oldSelf.network.outboundPort && self.network.inboundPort == oldSelf.network.inboundPort",message="the ports of a shared proxy do not change: the rules of pods lead there; make another profile"
type ProxyProfileSpec struct {
	// NamespaceSelector selects, by labels, the namespaces whose pods may choose this profile. Without it no pod may; an empty selector
	// ({}) selects all namespaces.
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`

	// Network says which ports the proxy listens on. The pod's traffic is redirected to them.
	// +kubebuilder:default={}
	Network Network `json:"network,omitempty"`

	// Container is a proxy for each pod, from any image.
	Container *Container `json:"container,omitempty"`

	// Istio is Istio's own proxy for each pod, as Istio's injector would have added it: pilot-agent with Envoy.
	Istio *Istio `json:"istio,omitempty"`

	// Shared is one proxy for all pods of a node that choose the profile. A DaemonSet of the chart runs it (value proxies.shared).
	Shared *Shared `json:"shared,omitempty"`
}

// Process returns what profiles with a proxy for each pod have in common: nil for a shared one, or for none.
func (s *ProxyProfileSpec) Process() *Process {
	switch {
	case s.Container != nil:
		return &s.Container.Process
	case s.Istio != nil:
		return &s.Istio.Process
	}
	return nil
}

// Rollout returns how a change reaches the nodes. That of a shared proxy reaches all at once.
func (s *ProxyProfileSpec) Rollout() Rollout {
	switch {
	case s.Container != nil:
		return s.Container.Update.Rollout
	case s.Istio != nil:
		return s.Istio.Update.Rollout
	}
	return Rollout{}
}

// Network says where the proxy listens. The defaults are Envoy's in Istio.
type Network struct {
	// OutboundPort takes the connections that the pod opens.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +kubebuilder:default=15001
	OutboundPort int32 `json:"outboundPort,omitempty"`
	// InboundPort takes the connections to the pod. It differs from OutboundPort.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +kubebuilder:default=15006
	InboundPort int32 `json:"inboundPort,omitempty"`
	// InboundPorts says which connections to the pod are captured: "all" (the default of the agent unless its flag --inbound-ports says
	// otherwise), or "listening" for those to ports on which somebody listens when they are opened. An annotation of the pod or its
	// namespace comes first.
	// +kubebuilder:validation:Enum=all;listening
	InboundPorts string `json:"inboundPorts,omitempty"`
	// HoldSeconds is how long new connections wait for a proxy that does not listen; 0: they are refused. The default is the agent's flag
	// --hold-seconds. An annotation of the pod or its namespace comes first.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=600
	HoldSeconds *int32 `json:"holdSeconds,omitempty"`
	// ExcludeInboundPorts are not redirected: the proxy's own ports that others call, such as health and metrics.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:Minimum=1
	// +kubebuilder:validation:items:Maximum=65535
	// +listType=set
	ExcludeInboundPorts []int32 `json:"excludeInboundPorts,omitempty"`
}
