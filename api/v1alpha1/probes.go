package v1alpha1

// Readiness is a question to the proxy, asked inside the pod's network namespace.
//
// +kubebuilder:validation:XValidation:rule="[has(self.httpGet), has(self.httpSocket), has(self.tcpPort), has(self.socket)].filter(x, x).size() == 1",message="exactly one of httpGet, httpSocket, tcpPort and socket"
type Readiness struct {
	// HTTPGet expects a status from 200 to 399 at a port of 127.0.0.1.
	HTTPGet *HTTPGet `json:"httpGet,omitempty"`
	// HTTPSocket expects it at a unix socket.
	HTTPSocket *HTTPSocket `json:"httpSocket,omitempty"`
	// TCPPort expects that a connection to 127.0.0.1 is accepted.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	TCPPort int32 `json:"tcpPort,omitempty"`
	// Socket is the name of a unix socket in /run/sidecar, to which a connection can be made. {epoch} in it is the proxy's epoch:
	// admin-{epoch}.sock is .AdminSocket. The kernel makes the connection, also to a process that hangs: prefer httpSocket.
	// +kubebuilder:validation:Pattern=`^([A-Za-z0-9_-]|\{epoch\})([A-Za-z0-9._-]|\{epoch\})*$`
	// +kubebuilder:validation:MaxLength=64
	Socket string `json:"socket,omitempty"`

	// StartSeconds is how long a new proxy may take until it is ready.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=600
	// +kubebuilder:default=10
	StartSeconds int32 `json:"startSeconds,omitempty"`
	// PeriodSeconds is the time between two questions to a proxy that is ready.
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=3600
	// +kubebuilder:default=10
	PeriodSeconds int32 `json:"periodSeconds,omitempty"`
	// FailureThreshold is how many questions in a row a proxy that was ready has to miss until it, and its pod, are no longer ready.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=3
	FailureThreshold int32 `json:"failureThreshold,omitempty"`
}

// IstioReadiness says when Istio's proxy is asked at its status port, and how often it may miss.
type IstioReadiness struct {
	// StartSeconds is how long a new proxy may take until it is ready.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=600
	// +kubebuilder:default=60
	StartSeconds int32 `json:"startSeconds,omitempty"`
	// PeriodSeconds is the time between two questions to a proxy that is ready.
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=3600
	// +kubebuilder:default=10
	PeriodSeconds int32 `json:"periodSeconds,omitempty"`
	// FailureThreshold is how many questions in a row a proxy that was ready has to miss until it, and its pod, are no longer ready.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=3
	FailureThreshold int32 `json:"failureThreshold,omitempty"`
}

// Liveness is a question to a proxy that has been ready, asked as Readiness is. A proxy that misses it too often is replaced. Ask what fails only
// if the proxy itself hangs, not what fails with its upstreams.
//
// +kubebuilder:validation:XValidation:rule="[has(self.httpGet), has(self.httpSocket), has(self.tcpPort)].filter(x, x).size() == 1",message="exactly one of httpGet, httpSocket and tcpPort"
type Liveness struct {
	// HTTPGet expects a status from 200 to 399 at a port of 127.0.0.1.
	HTTPGet *HTTPGet `json:"httpGet,omitempty"`
	// HTTPSocket expects it at a unix socket.
	HTTPSocket *HTTPSocket `json:"httpSocket,omitempty"`
	// TCPPort expects that a connection to 127.0.0.1 is accepted.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	TCPPort int32 `json:"tcpPort,omitempty"`
	// PeriodSeconds is the time between two questions.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	// +kubebuilder:default=10
	PeriodSeconds int32 `json:"periodSeconds,omitempty"`
	// FailureThreshold is how many questions in a row a proxy has to miss until it is replaced.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=3
	FailureThreshold int32 `json:"failureThreshold,omitempty"`
}

// HTTPGet is a request to a port of 127.0.0.1.
type HTTPGet struct {
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
	// +kubebuilder:validation:Pattern=`^/[!-~]*$`
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:default="/"
	Path string `json:"path,omitempty"`
}

// HTTPSocket is a request to a unix socket.
type HTTPSocket struct {
	// Name of the socket in /run/sidecar. {epoch} in it is the proxy's epoch: admin-{epoch}.sock is .AdminSocket.
	// +kubebuilder:validation:Pattern=`^([A-Za-z0-9_-]|\{epoch\})([A-Za-z0-9._-]|\{epoch\})*$`
	// +kubebuilder:validation:MaxLength=64
	Name string `json:"name"`
	// +kubebuilder:validation:Pattern=`^/[!-~]*$`
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:default="/"
	Path string `json:"path,omitempty"`
}
