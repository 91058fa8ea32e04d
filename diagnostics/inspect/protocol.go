package inspect

import (
	"fmt"
	"net/url"
	"strconv"
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

// What client and agent agree on about the proxies that agents run for single pods.
const (
	LogRoute  = Route + "/log"
	ExecRoute = Route + "/exec"
	// ErrorTrailer follows a log that was cut off, with the reason.
	ErrorTrailer = "Pod-Network-Error"
	// MaxOutput bounds what is kept of each stream of a command.
	MaxOutput = 256 << 10
	// MaxCommand bounds the request with a command.
	MaxCommand = 64 << 10
)

// LogOptions say what of a proxy's log is wanted.
type LogOptions struct {
	Previous, Follow, Times bool
	Tail                    int // negative: all
}

// Query is the options as a request has them.
func (o LogOptions) Query() url.Values {
	return url.Values{
		"previous": {strconv.FormatBool(o.Previous)}, "follow": {strconv.FormatBool(o.Follow)}, "times": {strconv.FormatBool(o.Times)}, "tail": {strconv.Itoa(o.Tail)},
	}
}

// LogOptionsOf reads the options of a request.
func LogOptionsOf(query url.Values) (o LogOptions, err error) {
	if o.Tail, err = strconv.Atoi(query.Get("tail")); err != nil {
		return o, fmt.Errorf("tail: value %q: want a number", query.Get("tail"))
	}
	o.Previous, o.Follow, o.Times = query.Get("previous") == "true", query.Get("follow") == "true", query.Get("times") == "true"
	return o, nil
}

// Command is a command to run in a proxy.
type Command struct {
	Args []string `json:"args"`
}

// Output is what a command has printed. Cut reports whether that was more than MaxOutput on a stream.
type Output struct {
	Out, Err []byte
	Code     int
	Cut      bool
}

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

// Clipped keeps the first Most bytes that are written to it.
type Clipped struct {
	Most int
	Text []byte
	Cut  bool // there were more
}

// Write never fails: the rest is left out.
func (c *Clipped) Write(text []byte) (int, error) {
	kept := text[:min(len(text), c.Most-len(c.Text))]
	c.Text, c.Cut = append(c.Text, kept...), c.Cut || len(kept) < len(text)
	return len(text), nil
}
