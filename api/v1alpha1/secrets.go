package v1alpha1

// SecretReference is the name of a Secret in the agent's namespace.
type SecretReference struct {
	// Name of the Secret. The agent reads only Secrets that the chart's value proxies.secrets names.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	Name string `json:"name"`
}

// SecretSource is a directory for a proxy, in memory and read-only: exactly one of secret, configMap, serviceAccountToken and workloadAPI.
//
// +kubebuilder:validation:XValidation:rule="[has(self.secret), has(self.configMap), has(self.serviceAccountToken), has(self.workloadAPI)].filter(x, x).size() == 1",message="exactly one of secret, configMap, serviceAccountToken and workloadAPI"
type SecretSource struct {
	// Name of the directory in /run/sidecar-secrets.
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`

	// Secret has a file for each key of a Secret in the agent's namespace.
	Secret *SecretKeys `json:"secret,omitempty"`

	// ConfigMap has a file for each key of a ConfigMap in the pod's namespace, such as a certificate of the mesh.
	ConfigMap *ConfigMapKeys `json:"configMap,omitempty"`

	// ServiceAccountToken has a token of the pod's ServiceAccount in the file token. The chart's value proxies.tokenAudiences has to allow
	// its audience.
	ServiceAccountToken *ServiceAccountToken `json:"serviceAccountToken,omitempty"`

	// WorkloadAPI has the sockets of a SPIFFE Workload API on the node.
	WorkloadAPI *WorkloadAPI `json:"workloadAPI,omitempty"`

	// UpgradeOnRotation has a new proxy take over when the files change, as after a change of the profile: for proxies that read their files
	// only when they start, such as HAProxy. Others see the new files at once, by the link ..data, which is replaced in one step. A proxy asks the
	// workloadAPI itself, which has none.
	UpgradeOnRotation bool `json:"upgradeOnRotation,omitempty"`
}

// SecretKeys are keys of a Secret.
type SecretKeys struct {
	SecretReference `json:",inline"`

	// Keys are the keys that the proxy gets: all, if empty.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z0-9_-][A-Za-z0-9._-]*$`
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=set
	Keys []string `json:"keys,omitempty"`
}

// ServiceAccountToken is a token that is bound to the pod: it ends with it.
type ServiceAccountToken struct {
	// Audience that accepts the token.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Audience string `json:"audience"`

	// ExpirationSeconds is the token's lifetime. A new one replaces it after 80 % of it.
	// +kubebuilder:validation:Minimum=600
	// +kubebuilder:validation:Maximum=86400
	// +kubebuilder:default=3600
	ExpirationSeconds int64 `json:"expirationSeconds,omitempty"`
}

// WorkloadAPI is a directory of the node in which a SPIFFE agent has its sockets.
type WorkloadAPI struct {
	// HostDirectory is the directory. It is made if it is not there, so that the agent may start later.
	// +kubebuilder:validation:Pattern=`^(/var)?/run(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+$`
	// +kubebuilder:validation:MaxLength=256
	HostDirectory string `json:"hostDirectory"`
}
