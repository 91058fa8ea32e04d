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
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`
// +kubebuilder:printcolumn:name="Image",type=string,JSONPath=`.spec.image`
// +kubebuilder:printcolumn:name="Handover",type=string,JSONPath=`.spec.handover`
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

	// Rollout says which nodes may use the present version. It is there while spec.rollout has maxNodes, partition or paused: otherwise all
	// may.
	// +optional
	Rollout *RolloutStatus `json:"rollout"` // null takes it away in a merge patch

	// The format date-time passes texts that Go cannot decode, and one list reads all profiles. The rule has the API server parse each time.

	// Conditions sum up the counts, as those of a Deployment do: Upgraded, Progressing and Failed.
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:XValidation:rule="self.all(c, c.lastTransitionTime > timestamp('1970-01-01T00:00:00Z'))",message="lastTransitionTime is no time"
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// RolloutStatus says which nodes may use a version of the profile. Each node has a place for each version, from 0 to 65535, which its name and the
// version's hash decide: one number is enough for a cluster of any size.
type RolloutStatus struct {
	// Hash is the version.
	// +kubebuilder:validation:MaxLength=64
	Hash string `json:"hash"`
	// Admitted lets the nodes with a lower place use the version: 0 is no node, 65536 are all.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65536
	Admitted int32 `json:"admitted"`
}

// The conditions of a ProxyProfile. All have the same reason and message.
const (
	// ConditionUpgraded reports whether all proxies are ready and of the profile's present version.
	ConditionUpgraded = "Upgraded"
	// ConditionProgressing is False if all that is left has failed already, or waits for what has, or for the end of spec.rollout.paused. It is True while proxies are upgraded, and
	// once all are.
	ConditionProgressing = "Progressing"
	// ConditionFailed reports whether proxies of the present version could not be started, or cannot be had by their pods.
	ConditionFailed = "Failed"
)

// The reasons of a ProxyProfile's conditions.
const (
	ReasonUpgraded  = "Upgraded"  // all proxies are
	ReasonNoPods    = "NoPods"    // there are none
	ReasonUpgrading = "Upgrading" // some are not yet
	ReasonFailed    = "Failed"    // some could not be, and are tried again, or their pods have to be changed
	ReasonPaused    = "Paused"    // some could not be, and on their nodes no others are upgraded until one succeeds; or spec.rollout.paused holds nodes back
)

// ProxyProfileList is a list of ProxyProfiles.
//
// +kubebuilder:object:root=true
type ProxyProfileList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ProxyProfile `json:"items"`
}

// ProxyProfileSpec is how a proxy is run.
//
// +kubebuilder:validation:XValidation:rule="self.mode != 'shared' || self.network.outboundPort == oldSelf.network.outboundPort && self.network.inboundPort == oldSelf.network.inboundPort",message="the ports of a shared proxy do not change: the rules of pods lead there; make another profile"
// +kubebuilder:validation:XValidation:rule="self.mode == oldSelf.mode",message="mode does not change: proxies of both modes would serve the same pods; make another profile, and have the pods choose it"
// +kubebuilder:validation:XValidation:rule="self.mode == 'shared' || has(self.image)",message="image is missing"
// +kubebuilder:validation:XValidation:rule="(self.mode == 'shared') == has(self.shared)",message="shared belongs to mode shared, which needs it"
// +kubebuilder:validation:XValidation:rule="self.mode != 'shared' || !(has(self.image) || has(self.imagePullSecrets) || has(self.command) || has(self.args) || has(self.env) || has(self.secrets) || has(self.hotRestart) || has(self.stopSignal) || self.handover != 'none' || has(self.resources) && (has(self.resources.memoryLimit) || has(self.resources.cpuLimit) || has(self.resources.cpuRequest)))",message="mode shared has no image, imagePullSecrets, command, args, env, secrets, resources, handover, stopSignal and hotRestart: the DaemonSet of the proxy has them"
// +kubebuilder:validation:XValidation:rule="self.mode != 'shared' || has(self.files) && self.files.size() > 0",message="mode shared needs files: the configuration of the proxy"
// +kubebuilder:validation:XValidation:rule="self.mode != 'shared' || !has(self.network.transparent) || !self.network.transparent",message="mode shared has no network.transparent"
// +kubebuilder:validation:XValidation:rule="self.network.outboundPort != self.network.inboundPort",message="outboundPort and inboundPort are the same"
// +kubebuilder:validation:XValidation:rule="self.handover in ['none', 'reuse-port'] || has(self.command) || has(self.args)",messageExpression="'handover ' + self.handover + ' adds arguments: set command or args'"
// +kubebuilder:validation:XValidation:rule="self.handover != 'envoy-hot-restart' || !has(self.command) || !self.command.exists(a, a in ['--base-id', '--base-id-path', '--use-dynamic-base-id', '--restart-epoch', '--socket-path', '--socket-mode', '--drain-time-s', '--parent-shutdown-time-s', '--hot-restart-version', '--disable-hot-restart', '--skip-hot-restart-on-no-parent'])",message="with handover envoy-hot-restart the agent sets --base-id, --base-id-path, --use-dynamic-base-id, --restart-epoch, --socket-path, --socket-mode, --drain-time-s, --parent-shutdown-time-s, --hot-restart-version, --disable-hot-restart and --skip-hot-restart-on-no-parent itself: take them out of command"
// +kubebuilder:validation:XValidation:rule="self.handover != 'envoy-hot-restart' || !has(self.args) || !self.args.exists(a, a in ['--base-id', '--base-id-path', '--use-dynamic-base-id', '--restart-epoch', '--socket-path', '--socket-mode', '--drain-time-s', '--parent-shutdown-time-s', '--hot-restart-version', '--disable-hot-restart', '--skip-hot-restart-on-no-parent'])",message="with handover envoy-hot-restart the agent sets --base-id, --base-id-path, --use-dynamic-base-id, --restart-epoch, --socket-path, --socket-mode, --drain-time-s, --parent-shutdown-time-s, --hot-restart-version, --disable-hot-restart and --skip-hot-restart-on-no-parent itself: take them out of args"
// +kubebuilder:validation:XValidation:rule="self.handover == 'envoy-hot-restart' || !has(self.hotRestart)",message="hotRestart needs handover envoy-hot-restart"
// +kubebuilder:validation:XValidation:rule="(self.handover == 'reuse-port' && !has(self.istio)) == has(self.stopSignal)",message="stopSignal belongs to handover reuse-port, which needs it; with istio it is TERM"
// +kubebuilder:validation:XValidation:rule="!has(self.istio) || !(has(self.command) || has(self.args) || has(self.files) || has(self.secrets) || has(self.liveness))",message="with istio command, args, files, secrets and liveness are left out: the agent computes what Istio's injector would write"
// +kubebuilder:validation:XValidation:rule="!has(self.istio) || self.mode == 'perPod' && self.handover in ['none', 'reuse-port'] && !(has(self.network.transparent) && self.network.transparent)",message="istio needs mode perPod, handover none or reuse-port, and no network.transparent"
// +kubebuilder:validation:XValidation:rule="(has(self.istio) ? 0 : 1) == [has(self.readiness.httpGet), has(self.readiness.tcpPort), has(self.readiness.socket)].filter(x, x).size()",message="readiness has exactly one of httpGet, tcpPort and socket; with istio it has none: the agent asks Istio's own status port"
// +kubebuilder:validation:XValidation:rule="self.handover != 'reuse-port' || has(self.istio) || has(self.readiness.slotPorts) && self.readiness.slotPorts || has(self.readiness.httpGet) && has(self.readiness.httpGet.socket) && self.readiness.httpGet.socket.contains('{epoch}')",message="with handover reuse-port the old proxy would answer for the new one: readiness has to ask the epoch itself, by httpGet on a socket with {epoch} in its name, such as admin-{epoch}.sock, or at a port with slotPorts"
// +kubebuilder:validation:XValidation:rule="self.handover != 'reuse-port' || !has(self.liveness) || has(self.liveness.slotPorts) && self.liveness.slotPorts || has(self.liveness.httpGet) && has(self.liveness.httpGet.socket) && self.liveness.httpGet.socket.contains('{epoch}')",message="with handover reuse-port another proxy would answer for the proxy that hangs: liveness has to ask the epoch itself, by httpGet on a socket with {epoch} in its name, such as admin-{epoch}.sock, or at a port with slotPorts"
// +kubebuilder:validation:XValidation:rule="self.mode != 'shared' || !has(self.liveness)",message="mode shared has no liveness: the DaemonSet of the proxy has its own"
// +kubebuilder:validation:XValidation:rule="self.mode != 'shared' || !has(self.rollout.maxNodes) && !has(self.rollout.partition) && !(has(self.rollout.paused) && self.rollout.paused)",message="mode shared has no rollout.maxNodes, rollout.partition and rollout.paused: all nodes take new files at once"
type ProxyProfileSpec struct {
	// NamespaceSelector selects, by labels, the namespaces whose pods may choose this profile. Without it no pod may; an empty selector
	// ({}) selects all namespaces.
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`

	// Mode says whether each pod has a proxy of its own (perPod), or all pods of a node that choose the profile share one (shared), which a
	// DaemonSet of the chart runs (value sidecars.shared).
	// +kubebuilder:validation:Enum=perPod;shared
	// +kubebuilder:default=perPod
	// +optional
	Mode Mode `json:"mode,omitempty"`

	// Shared says how the agent puts a new configuration into force in a shared proxy.
	// +optional
	Shared *Shared `json:"shared,omitempty"`

	// Istio has Istio's own proxy run for each pod as Istio's injector would have added it: pilot-agent with Envoy. What the injector would
	// write is computed for each new proxy from the control plane's ConfigMaps and the pod. Image is Istio's (proxyv2), of the control plane's
	// version. Env is added, and wins. From readiness only the times are taken.
	// +optional
	Istio *Istio `json:"istio,omitempty"`

	// Image of the proxy. A tag that moves is not followed: an image is pulled when the node does not have it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Image string `json:"image,omitempty"`

	// ImagePullSecrets are Secrets of type kubernetes.io/dockerconfigjson with the credentials of the image's registry. They are in the
	// agent's namespace, and the chart's value sidecars.secrets names them.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	ImagePullSecrets []SecretReference `json:"imagePullSecrets,omitempty"`

	// Command replaces the image's entrypoint.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=4096
	// +listType=atomic
	// +optional
	Command []string `json:"command,omitempty"`

	// Args replace the image's command. With a handover, the agent appends the arguments of it.
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=4096
	// +listType=atomic
	// +optional
	Args []string `json:"args,omitempty"`

	// Env are environment variables.
	// +kubebuilder:validation:MaxItems=128
	// +listType=map
	// +listMapKey=name
	// +optional
	Env []EnvVar `json:"env,omitempty"`

	// Files are written for each proxy and mounted read-only at /etc/sidecar, or with mode shared for all pods of the node at once.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	Files []File `json:"files,omitempty"`

	// Secrets are directories in memory, mounted read-only at /run/sidecar-secrets/NAME of the proxy alone.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	Secrets []SecretSource `json:"secrets,omitempty"`

	// RunAsUser is the proxy's user ID, which no container of the pod may have. With network.transparent, and with mode shared, it is 0
	// instead.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	// +kubebuilder:default=1337
	// +optional
	RunAsUser int64 `json:"runAsUser,omitempty"`

	// RunAsGroup is the proxy's group ID. With network.transparent, and with mode shared, no container of the pod may have it. With mode shared
	// the chart's value sidecars.shared has to have the same: pods do not join a proxy that runs as another group.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	// +kubebuilder:default=1337
	// +optional
	RunAsGroup int64 `json:"runAsGroup,omitempty"`

	// Resources bound the proxy within the limits of its pod. The scheduler does not know them.
	// +optional
	Resources Resources `json:"resources,omitempty"`

	// Readiness says when the proxy is ready. With mode shared it is ready for a pod once it has answered the version of a configuration with
	// that pod; a port that is named here has to be free in the pod, as the proxy's other ports.
	// +kubebuilder:default={}
	// +optional
	Readiness Readiness `json:"readiness"`

	// Liveness says when a proxy that has been ready hangs: it is replaced, with the handover where the hanging proxy still can. Without it no
	// proxy is replaced for not answering.
	// +optional
	Liveness *Liveness `json:"liveness,omitempty"`

	// DrainSeconds is how long an old proxy may finish its connections after an upgrade. An Envoy gets it as --parent-shutdown-time-s, and
	// two thirds of it as --drain-time-s.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	// +kubebuilder:default=45
	// +optional
	DrainSeconds int32 `json:"drainSeconds,omitempty"`

	// Handover is how a new proxy takes over from a running one, which finishes its connections: haproxy (its listeners are passed through
	// an admin socket, which the template opens at .HandoverSocket), envoy-hot-restart (Envoy's own way; its admin interface has to be the
	// unix socket .AdminSocket), reuse-port (for proxies that listen with SO_REUSEPORT: both serve until the new one is ready, and then the
	// old one gets stopSignal), or none (the old proxy is stopped first, connections are lost).
	// +kubebuilder:default=none
	// +optional
	Handover Handover `json:"handover,omitempty"`

	// StopSignal has a proxy with handover reuse-port close its listeners, finish its connections and end: QUIT for nginx, USR1 for HAProxy.
	// +kubebuilder:validation:Enum=HUP;INT;QUIT;TERM;USR1;USR2;WINCH
	// +optional
	StopSignal string `json:"stopSignal,omitempty"`

	// HotRestart refines handover envoy-hot-restart.
	// +optional
	HotRestart *HotRestart `json:"hotRestart,omitempty"`

	// Rollout bounds how a change of the profile reaches the proxies of a node, and the nodes.
	// +kubebuilder:default={}
	// +optional
	Rollout Rollout `json:"rollout,omitempty"`

	// RestartPolicy says whether a proxy that ends is started again: Always, or OnFailure (exit code not 0).
	// +kubebuilder:validation:Enum=Always;OnFailure
	// +kubebuilder:default=Always
	// +optional
	RestartPolicy string `json:"restartPolicy,omitempty"`

	// Network says which ports the proxy listens on. The pod's traffic is redirected to them.
	// +kubebuilder:default={}
	// +optional
	Network Network `json:"network,omitempty"`
}

// Mode says which pods a proxy serves.
type Mode string

// The modes.
const (
	ModePerPod Mode = "perPod"
	ModeShared Mode = "shared"
)

// Handover is a way to replace a running proxy.
//
// +kubebuilder:validation:Enum=none;haproxy;envoy-hot-restart;reuse-port
type Handover string

// The handovers.
const (
	HandoverNone      Handover = "none"
	HandoverHAProxy   Handover = "haproxy"
	HandoverEnvoy     Handover = "envoy-hot-restart"
	HandoverReusePort Handover = "reuse-port"
)

// EnvVar is an environment variable: a value, or a field of the pod.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.value) && has(self.fieldPath))",message="value and fieldPath exclude each other"
type EnvVar struct {
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][A-Za-z0-9_]*$`
	// +kubebuilder:validation:MaxLength=256
	Name string `json:"name"`
	// +kubebuilder:validation:MaxLength=32768
	// +optional
	Value string `json:"value,omitempty"`
	// FieldPath is metadata.name, metadata.namespace, metadata.uid, spec.nodeName, spec.serviceAccountName, status.podIP,
	// status.podIPs (all addresses, separated by commas), metadata.labels['KEY'] or metadata.annotations['KEY'].
	// +kubebuilder:validation:Pattern=`^(metadata\.(name|namespace|uid)|spec\.(nodeName|serviceAccountName)|status\.podIPs?|metadata\.(labels|annotations)\['[^']+'\])$`
	// +optional
	FieldPath string `json:"fieldPath,omitempty"`
}

// File is a file for the proxy.
type File struct {
	// Name of the file in /etc/sidecar.
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_-][A-Za-z0-9._-]*$`
	// +kubebuilder:validation:MaxLength=128
	Name string `json:"name"`

	// Template is a Go template over the pod's data: .Pod.Name, .Pod.Namespace, .Pod.UID, .Pod.IP, .Pod.IPs (of all families), .Pod.Node,
	// .Pod.ServiceAccount, .Pod.Labels, .Pod.Annotations, .Network, .Epoch, .Slot, .HandoverSocket and .AdminSocket. With mode shared it is over the node's: .Pods, each
	// with the same fields and .NetNS, the name of its network namespace in /var/run/netns; .Network, .Node and .Version.
	// Every value that it prints is quoted as Syntax says.
	// +kubebuilder:validation:MaxLength=262144
	Template string `json:"template"`

	// Syntax is how values are quoted: haproxy (one word of a line), json and yaml (a string), or plain (only letters, digits and
	// ._:/@=+- are accepted). A value with control characters is refused.
	// +kubebuilder:validation:Enum=haproxy;json;yaml;plain
	// +kubebuilder:default=plain
	// +optional
	Syntax string `json:"syntax,omitempty"`
}
