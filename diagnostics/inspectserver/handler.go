package inspectserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	"istio-pod-network-controller/diagnostics/inspect"
	"istio-pod-network-controller/internal/apiauth"
	"istio-pod-network-controller/internal/netns"
)

// handler answers requests about pods, all others with 404.
type handler struct {
	look *Looker
	// check returns nil if the owner of a token has a right to a pod, and else a *inspect.Refusal. nil: whoever can connect may.
	check func(ctx context.Context, token string, to apiauth.Attributes) error
	// proxies are the proxies whose logs and commands are served, as many in parallel as line has places; nil: they are not served.
	proxies ProxyAccess
	line    chan struct{}
}

// answer answers a request about a pod, or returns an error, best a *inspect.Refusal. ctx ends soon, that of the request does not.
type answer func(ctx context.Context, w http.ResponseWriter, r *http.Request, namespace, name string) error

// mux has the routes, with the rights that they take: kubectl needs the same for what it does with a pod.
func (h handler) mux() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+inspect.Route, h.serve(apiauth.Attributes{Verb: "get"}, h.document))
	if h.proxies != nil {
		mux.HandleFunc("GET "+inspect.LogRoute, h.serve(apiauth.Attributes{Verb: "get", Subresource: "log"}, h.inLine(h.log)))
		mux.HandleFunc("POST "+inspect.ExecRoute, h.serve(apiauth.Attributes{Verb: "create", Subresource: "exec"}, h.inLine(h.exec)))
	}
	return mux
}

// serve returns a handler of requests whose caller has a right to the pod.
func (h handler) serve(to apiauth.Attributes, answer answer) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), timeout)
		defer cancel()
		namespace, name, err := h.admit(ctx, r, to)
		if err == nil {
			err = answer(ctx, w, r, namespace, name)
		}
		if err != nil {
			refuse(w, err)
		}
	}
}

func (h handler) document(ctx context.Context, w http.ResponseWriter, _ *http.Request, namespace, name string) error {
	var doc inspect.Document
	err := netns.Contain(func() (err error) { doc, err = h.look.Document(ctx, namespace, name); return err })
	if p, ok := errors.AsType[*netns.PanicError](err); ok {
		ctrl.Log.Error(p, "inspect panicked", "pod", namespace+"/"+name, "stack", string(p.Stack))
	}
	if err == nil {
		writeJSON(w, http.StatusOK, doc)
	}
	return err
}

// admit returns which pod a request is about, if its caller has a right to it, and else a *inspect.Refusal.
func (h handler) admit(ctx context.Context, r *http.Request, to apiauth.Attributes) (namespace, name string, err error) {
	namespace, name = r.PathValue("namespace"), r.PathValue("name")
	if len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return "", "", &inspect.Refusal{Code: http.StatusBadRequest, Message: "want the path " + inspect.Path("NAMESPACE", "POD")}
	}
	if h.check == nil {
		return namespace, name, nil
	}
	token := apiauth.Token(r)
	if token == "" {
		return "", "", &inspect.Refusal{Code: http.StatusUnauthorized, Message: "the request has no bearer token"}
	}
	to.Resource, to.Namespace, to.Name = "pods", namespace, name
	return namespace, name, h.check(ctx, token, to)
}

func refuse(w http.ResponseWriter, err error) {
	var refusal *inspect.Refusal
	if !errors.As(err, &refusal) {
		refusal = &inspect.Refusal{Code: http.StatusInternalServerError, Message: err.Error()}
	}
	writeJSON(w, refusal.Code, refusal)
}

func writeJSON(w http.ResponseWriter, status int, value any) {
	text, err := json.Marshal(value)
	if err != nil || len(text) > inspect.MaxAnswer {
		http.Error(w, `{"code":500,"message":"the answer cannot be written"}`, http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(text) // the caller has gone
}

// tunnel hands a connection that is upgraded over to another server. It needs no rights: what is asked inside does.
type tunnel struct {
	conns chan net.Conn
	ended chan struct{}
	end   func()
}

func newTunnel() *tunnel {
	ended := make(chan struct{})
	return &tunnel{conns: make(chan net.Conn), ended: ended, end: sync.OnceFunc(func() { close(ended) })}
}

// ServeHTTP upgrades the connection.
func (t *tunnel) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !strings.EqualFold(r.Header.Get("Upgrade"), inspect.UpgradeProtocol) {
		refuse(w, &inspect.Refusal{Code: http.StatusBadRequest, Message: "want the header Upgrade: " + inspect.UpgradeProtocol})
		return
	}
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		refuse(w, err)
		return
	}
	_, err = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+inspect.UpgradeProtocol+"\r\n\r\n")
	if err != nil || buffered.Reader.Buffered() > 0 { // nobody who waits for the answer has sent anything
		_ = conn.Close() // nothing was said on it
		return
	}
	select {
	case t.conns <- conn:
	case <-t.ended:
		_ = conn.Close() // nothing was said on it
	}
}

// Accept returns the next upgraded connection.
func (t *tunnel) Accept() (net.Conn, error) {
	select {
	case conn := <-t.conns:
		return conn, nil
	case <-t.ended:
		return nil, net.ErrClosed
	}
}

// Close ends the tunnel.
func (t *tunnel) Close() error { t.end(); return nil }

// Addr returns an address that says what this is.
func (t *tunnel) Addr() net.Addr { return &net.UnixAddr{Net: "tunnel", Name: inspect.TunnelPath} }

// allowedTime is how long an answer of the API server about a caller counts.
const allowedTime = 10 * time.Second

// callers knows the rights of callers to pods. An accepted connection costs the API server two questions at most (bounds). Connections are
// limited by address, and questions are not: with a smaller limit, one address could use up the questions of all.
type callers struct{ authorizer *apiauth.Authorizer }

// newCallers uses a client with a rate limit of its own, so that callers do not use up the agent's requests.
func newCallers(config *rest.Config) (callers, error) {
	config = rest.CopyConfig(config)
	limits := bounds()
	config.QPS, config.Burst, config.Timeout = float32(2*limits.Rate), 2*limits.Burst, timeout
	config.RateLimiter, config.ContentType = nil, "application/json"
	reviews, err := apiauth.NewClient(config, nil)
	if err != nil {
		return callers{}, err
	}
	return callers{apiauth.New(reviews, apiauth.Options{
		AllowedTime: allowedTime, PerSecond: float32(limits.Rate), AtOnce: limits.Burst, Audience: inspect.Audience,
	})}, nil
}

// check returns nil if the owner of the token has a right to the pod, and else a *inspect.Refusal. It does not look whether there is such a pod.
func (c callers) check(ctx context.Context, token string, to apiauth.Attributes) error {
	err := c.authorizer.Authorize(ctx, token, to)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, apiauth.ErrUnauthenticated):
		return &inspect.Refusal{Code: http.StatusUnauthorized, Message: "the API server does not accept this token: it may have expired; log in again"}
	case errors.Is(err, apiauth.ErrForbidden):
		right := strings.TrimSuffix(to.Verb+" "+to.Resource+"/"+to.Subresource, "/") // as in "get pods/log"
		return &inspect.Refusal{Code: http.StatusForbidden, Message: fmt.Sprintf("not allowed: this takes the right to %s of pod %s in namespace %s", right, to.Name, to.Namespace)}
	case errors.Is(err, apiauth.ErrBusy):
		return &inspect.Refusal{Code: http.StatusServiceUnavailable, Message: err.Error()}
	}
	return &inspect.Refusal{Code: http.StatusInternalServerError, Message: "the agent could not ask the API server about the caller: " + err.Error()}
}
