package inspect

import (
	"net/url"
	"strings"
)

// What client and agent agree on.
const (
	pathPrefix = "/v1/pods/"
	// Route is the pattern of a document's path, for http.ServeMux.
	Route = pathPrefix + "{namespace}/{name}"
	// TunnelPath is asked for with Upgrade: UpgradeProtocol. After the answer 101 the connection carries TLS, and in it the same requests.
	TunnelPath      = "/v1/tunnel"
	UpgradeProtocol = "istio-pod-network-inspect"
	// Audience is accepted in a token besides the API server's own. Such a token is worth nothing anywhere else.
	Audience = "istio-pod-network-controller"
	// DefaultSocket is where an agent answers in its own container, beside the socket of its health checks.
	DefaultSocket = "/run/istio-pod-network-health/inspect.sock"
	// MaxAnswer bounds an answer.
	MaxAnswer = 1 << 20
)

// Path returns the path of a pod's document.
func Path(namespace, name string) string {
	return pathPrefix + url.PathEscape(namespace) + "/" + url.PathEscape(name)
}

// Refusal is an answer without a document. Code is HTTP's.
type Refusal struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// Error returns the message.
func (r *Refusal) Error() string { return r.Message }

func (d Document) namespace() string { ns, _, _ := strings.Cut(d.Pod, "/"); return ns }

func (d Document) name() string { _, name, _ := strings.Cut(d.Pod, "/"); return name }
