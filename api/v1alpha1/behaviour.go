package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Resources bound a proxy. The pod's own limits hold as well: its containers and the proxy share them.
type Resources struct {
	// MemoryLimit ends the proxy when it uses more.
	// +optional
	MemoryLimit *resource.Quantity `json:"memoryLimit,omitempty"`
	// CPULimit is the most CPU time that the proxy gets.
	// +optional
	CPULimit *resource.Quantity `json:"cpuLimit,omitempty"`
	// CPURequest is the proxy's share when the node is busy.
	// +optional
	CPURequest *resource.Quantity `json:"cpuRequest,omitempty"`
}

// Readiness is a question to the proxy, asked inside the pod's network namespace: one of httpGet, tcpPort and socket.
//
// +kubebuilder:validation:XValidation:rule="!has(self.slotPorts) || !self.slotPorts || has(self.tcpPort) && self.tcpPort < 65535 || has(self.httpGet) && has(self.httpGet.port) && self.httpGet.port < 65535",message="slotPorts needs a port with a next one: tcpPort or httpGet.port, 65534 at most"
type Readiness struct {
	// HTTPGet expects a status from 200 to 399.
	// +optional
	HTTPGet *HTTPGet `json:"httpGet,omitempty"`
	// TCPPort expects that a connection to 127.0.0.1 is accepted.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	TCPPort int32 `json:"tcpPort,omitempty"`
	// Socket is the name of a unix socket in /run/sidecar, to which a connection can be made. {epoch} in it is the proxy's epoch:
	// admin-{epoch}.sock is .AdminSocket. The kernel makes the connection, also to a process that hangs: prefer httpGet.
	// +kubebuilder:validation:Pattern=`^([A-Za-z0-9_-]|\{epoch\})([A-Za-z0-9._-]|\{epoch\})*$`
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Socket string `json:"socket,omitempty"`
	// SlotPorts has a proxy of slot 1 asked at the port after the named one: proxies that run side by side have the slots 0 and 1
	// (.Slot in the templates).
	// +optional
	SlotPorts bool `json:"slotPorts,omitempty"`
	// StartSeconds is how long a new proxy may take until it is ready.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=600
	// +kubebuilder:default=10
	// +optional
	StartSeconds int32 `json:"startSeconds,omitempty"`
	// PeriodSeconds is the time between two questions to a proxy that is ready.
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=3600
	// +kubebuilder:default=10
	// +optional
	PeriodSeconds int32 `json:"periodSeconds,omitempty"`
	// FailureThreshold is how many questions in a row a proxy that was ready has to miss until it, and its pod, are no longer ready.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=3
	// +optional
	FailureThreshold int32 `json:"failureThreshold,omitempty"`
}

// Liveness is a question to a proxy that has been ready, asked as Readiness is: exactly one of httpGet and tcpPort. A proxy that misses it too
// often is replaced. Ask what fails only if the proxy itself hangs, not what fails with its upstreams.
//
// +kubebuilder:validation:XValidation:rule="!has(self.slotPorts) || !self.slotPorts || has(self.tcpPort) && self.tcpPort < 65535 || has(self.httpGet) && has(self.httpGet.port) && self.httpGet.port < 65535",message="slotPorts needs a port with a next one: tcpPort or httpGet.port, 65534 at most"
// +kubebuilder:validation:XValidation:rule="has(self.httpGet) != has(self.tcpPort)",message="exactly one of httpGet and tcpPort"
type Liveness struct {
	// HTTPGet expects a status from 200 to 399.
	// +optional
	HTTPGet *HTTPGet `json:"httpGet,omitempty"`
	// TCPPort expects that a connection to 127.0.0.1 is accepted.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	TCPPort int32 `json:"tcpPort,omitempty"`
	// SlotPorts has a proxy of slot 1 asked at the port after the named one.
	// +optional
	SlotPorts bool `json:"slotPorts,omitempty"`
	// PeriodSeconds is the time between two questions.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	// +kubebuilder:default=10
	// +optional
	PeriodSeconds int32 `json:"periodSeconds,omitempty"`
	// FailureThreshold is how many questions in a row a proxy has to miss until it is replaced.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=3
	// +optional
	FailureThreshold int32 `json:"failureThreshold,omitempty"`
}

// HTTPGet is a request to a port of 127.0.0.1, or to a unix socket.
//
// +kubebuilder:validation:XValidation:rule="has(self.port) != has(self.socket)",message="exactly one of port and socket"
type HTTPGet struct {
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	Port int32 `json:"port,omitempty"`
	// Socket is the name of a unix socket in /run/sidecar. {epoch} in it is the proxy's epoch.
	// +kubebuilder:validation:Pattern=`^([A-Za-z0-9_-]|\{epoch\})([A-Za-z0-9._-]|\{epoch\})*$`
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Socket string `json:"socket,omitempty"`
	// +kubebuilder:validation:Pattern=`^/[!-~]*$`
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:default="/"
	// +optional
	Path string `json:"path,omitempty"`
}

// Rollout bounds how a new version of the profile reaches proxies: of one node, and the nodes of the cluster.
type Rollout struct {
	// MaxParallel is how many proxies of a node are upgraded at the same time.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=2
	// +optional
	MaxParallel int32 `json:"maxParallel,omitempty"`
	// PauseOnFailure stops the upgrades of a node once new proxies of this version have failed there in three pods, or in all pods if there
	// are fewer, with no success between. The pods whose proxies failed are tried again; a success ends the pause.
	// +kubebuilder:default=true
	// +optional
	PauseOnFailure *bool `json:"pauseOnFailure,omitempty"`
	// MaxNodes is on how many nodes at the same time not all proxies are of a new version yet: the other nodes keep the version that was ready
	// there last. While upgrades are paused after failures on one of these nodes, no other node begins. Without it all nodes begin at once.
	// +kubebuilder:validation:Minimum=1
	// +optional
	MaxNodes int32 `json:"maxNodes,omitempty"`
	// Partition is how many of the profile's nodes, as a number or a percentage rounded up, do not begin with a new version: they keep it for the
	// others to be tried first. Lower it to go on, at last to 0.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 0 && self <= 2147483647 : self.matches('^(100|[0-9]{1,2})%$')",message="partition is a number of nodes, or a percentage of them from 0% to 100%"
	// +optional
	Partition *intstr.IntOrString `json:"partition,omitempty"`
	// Paused has no further node begin with a new version. Nodes that maxNodes has let begin go on; without maxNodes none does.
	// +optional
	Paused bool `json:"paused,omitempty"`
}

// Network says where the proxy listens. The defaults are Envoy's in Istio.
type Network struct {
	// OutboundPort takes the connections that the pod opens.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +kubebuilder:default=15001
	// +optional
	OutboundPort int32 `json:"outboundPort,omitempty"`
	// InboundPort takes the connections to the pod.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +kubebuilder:default=15006
	// +optional
	InboundPort int32 `json:"inboundPort,omitempty"`
	// InboundPorts says which connections to the pod are captured: "all" (the default of the agent unless its flag --inbound-ports says
	// otherwise), or "listening" for those to ports on which somebody listens when they are opened. An annotation of the pod or its
	// namespace comes first.
	// +kubebuilder:validation:Enum=all;listening
	// +optional
	InboundPorts string `json:"inboundPorts,omitempty"`
	// ExcludeInboundPorts are not redirected: the proxy's own ports that others call, such as health and metrics.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:Minimum=1
	// +kubebuilder:validation:items:Maximum=65535
	// +listType=set
	// +optional
	ExcludeInboundPorts []int32 `json:"excludeInboundPorts,omitempty"`
	// Transparent captures inbound connections with TPROXY, so that the proxy sees the clients' addresses, and gives the proxy (not the
	// application) the capability NET_ADMIN within the pod's network. No runtime gives a capability to another user than root, so the proxy
	// then runs as root, without any other capability, and the rules know it by runAsGroup.
	// +optional
	Transparent bool `json:"transparent,omitempty"`
}

// Shared says how the agent puts a new configuration into force in the proxy that the pods of a node share.
//
// The proxy finds the files of the profile in /etc/sidecar/current, files to be checked in /etc/sidecar/next, and answers a GET on
// the unix socket /run/sidecar/version.sock with the version that its configuration has (.Version in the templates).
type Shared struct {
	// Check is a command that ends with code 0 if the files in /etc/sidecar/next can be used. It runs in the proxy's container.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=4096
	// +listType=atomic
	Check []string `json:"check"`
	// ReloadSignal is sent to the first process of the proxy's container once /etc/sidecar/current has changed. Without it the proxy sees
	// the change itself.
	// +kubebuilder:validation:Enum=HUP;USR1;USR2
	// +optional
	ReloadSignal string `json:"reloadSignal,omitempty"`
}

// HotRestart says how Envoys take over from each other.
type HotRestart struct {
	// OnIncompatibleVersion is what happens to a running Envoy if the new image's answers --hot-restart-version with another version, and so
	// cannot take over: Keep (the old one stays, and the ManagedProxy says why), or Replace (it is stopped first, connections are lost).
	// +kubebuilder:validation:Enum=Keep;Replace
	// +kubebuilder:default=Keep
	// +optional
	OnIncompatibleVersion string `json:"onIncompatibleVersion,omitempty"`
}

// IncompatibleReplace is the value of OnIncompatibleVersion with which an upgrade may cost connections.
const IncompatibleReplace = "Replace"
