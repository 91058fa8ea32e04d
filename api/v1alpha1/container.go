package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
)

// Process is what containers and Istio's proxies have in common.
type Process struct {
	// Image of the proxy. A tag that moves is not followed: an image is pulled when the node does not have it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Image string `json:"image"`

	// ImagePullSecrets are Secrets of type kubernetes.io/dockerconfigjson with the credentials of the image's registry. They are in the
	// agent's namespace, and the chart's value proxies.secrets names them.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	ImagePullSecrets []SecretReference `json:"imagePullSecrets,omitempty"`

	// Env are environment variables. For Istio's proxy they win over what the agent computes.
	// +kubebuilder:validation:MaxItems=128
	// +listType=map
	// +listMapKey=name
	Env []EnvVar `json:"env,omitempty"`

	// RunAsUser is the proxy's user ID, which no container of the pod may have. A transparent proxy has 0 instead.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	// +kubebuilder:default=1337
	RunAsUser int64 `json:"runAsUser,omitempty"`

	// RunAsGroup is the proxy's group ID. That of a transparent proxy no container of the pod may have.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	// +kubebuilder:default=1337
	RunAsGroup int64 `json:"runAsGroup,omitempty"`

	// Resources bound the proxy within the limits of its pod. The scheduler does not know them.
	Resources Resources `json:"resources,omitempty"`

	// RestartPolicy says whether a proxy that ends is started again: Always, or OnFailure (exit code not 0).
	// +kubebuilder:validation:Enum=Always;OnFailure
	// +kubebuilder:default=Always
	RestartPolicy string `json:"restartPolicy,omitempty"`
}

// Container is a proxy from any image.
type Container struct {
	Process `json:",inline"`

	// Command replaces the image's entrypoint.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=4096
	// +listType=atomic
	Command []string `json:"command,omitempty"`

	// Args replace the image's command. With the handovers haproxy and envoyHotRestart the agent appends arguments: command or args are needed then.
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=4096
	// +listType=atomic
	Args []string `json:"args,omitempty"`

	// Files are written for each proxy and mounted read-only at /etc/sidecar.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	Files []File `json:"files,omitempty"`

	// Secrets are directories in memory, mounted read-only at /run/sidecar-secrets/NAME of the proxy alone.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	Secrets []SecretSource `json:"secrets,omitempty"`

	// Transparent captures inbound connections with TPROXY, so that the proxy sees the clients' addresses, and gives the proxy (not the
	// application) the capability NET_ADMIN within the pod's network. No runtime gives a capability to another user than root, so the proxy
	// then runs as root, without any other capability, and the rules know it by runAsGroup.
	Transparent bool `json:"transparent,omitempty"`

	// Readiness says when the proxy is ready.
	Readiness Readiness `json:"readiness"`

	// Liveness says when a proxy that has been ready hangs: it is replaced, with the handover where the hanging proxy still can. Without it no
	// proxy is replaced for not answering.
	Liveness *Liveness `json:"liveness,omitempty"`

	// Update says how a new version of the profile reaches the running proxies.
	// +kubebuilder:default={}
	Update Update `json:"update,omitempty"`
}

// Resources bound a proxy. The pod's own limits hold as well: its containers and the proxy share them.
type Resources struct {
	// MemoryLimit ends the proxy when it uses more.
	MemoryLimit *resource.Quantity `json:"memoryLimit,omitempty"`
	// CPULimit is the most CPU time that the proxy gets.
	CPULimit *resource.Quantity `json:"cpuLimit,omitempty"`
	// CPURequest is the proxy's share when the node is busy.
	CPURequest *resource.Quantity `json:"cpuRequest,omitempty"`
}

// EnvVar is an environment variable: a value, or a field of the pod, but not both.
type EnvVar struct {
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][A-Za-z0-9_]*$`
	// +kubebuilder:validation:MaxLength=256
	Name string `json:"name"`
	// +kubebuilder:validation:MaxLength=32768
	Value string `json:"value,omitempty"`
	// FieldPath is metadata.name, metadata.namespace, metadata.uid, spec.nodeName, spec.serviceAccountName, status.podIP,
	// status.podIPs (all addresses, separated by commas), metadata.labels['KEY'] or metadata.annotations['KEY'].
	// +kubebuilder:validation:Pattern=`^(metadata\.(name|namespace|uid)|spec\.(nodeName|serviceAccountName)|status\.podIPs?|metadata\.(labels|annotations)\['[^']+'\])$`
	FieldPath string `json:"fieldPath,omitempty"`
}

// File is a file for the proxy.
type File struct {
	// Name of the file in /etc/sidecar.
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_-][A-Za-z0-9._-]*$`
	// +kubebuilder:validation:MaxLength=128
	Name string `json:"name"`

	// Template is a Go template, without the functions call, html, js and urlquery.
	// In a container it is over the pod's data: .Pod.Name, .Pod.Namespace, .Pod.UID, .Pod.IP, .Pod.IPs (of all families),
	// .Pod.Node, .Pod.ServiceAccount, .Pod.Labels, .Pod.Annotations, .Namespace.Name, .Namespace.EgressNames (what the namespace's annotation allows,
	// each with .Name, and .Below for the names below it), .Network, .Epoch, .Slot, .HandoverSocket and .AdminSocket. In shared it is
	// over the node's: .Pods, each with .Pod's fields and .NetNS, the name of its network namespace in /var/run/netns; .Network, .Node and .Version.
	// Every value that it prints is quoted as Syntax says.
	// +kubebuilder:validation:MaxLength=262144
	Template string `json:"template"`

	// Syntax is how values are quoted: haproxy (one word of a line), json and yaml (a string), or plain (only letters, digits and
	// ._:/@=+- are accepted). A value with control characters is refused.
	// +kubebuilder:validation:Enum=haproxy;json;yaml;plain
	// +kubebuilder:default=plain
	Syntax string `json:"syntax,omitempty"`
}
