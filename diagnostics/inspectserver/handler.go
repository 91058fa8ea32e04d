package inspectserver

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/util/validation"
	ctrl "sigs.k8s.io/controller-runtime"

	"istio-pod-network-controller/diagnostics/inspect"
	"istio-pod-network-controller/internal/apiauth"
	"istio-pod-network-controller/internal/netns"
)

// inspectHandler answers requests for documents, all others with 404.
type inspectHandler struct {
	// document returns a document, or a *inspect.Refusal.
	document func(ctx context.Context, namespace, name string) (inspect.Document, error)
	// check returns nil if the owner of a token has a right to a pod, and else a *inspect.Refusal. nil: whoever can connect may.
	check func(ctx context.Context, token string, to right, namespace, name string) error
	// proxies serves logs and commands of proxies; nil: they are not served.
	proxies *proxyHandler
}

func (h inspectHandler) mux() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+inspect.Route, h.serve)
	if h.proxies != nil {
		mux.HandleFunc("GET "+inspect.LogRoute, h.proxies.serve(h, rightToLog(), h.proxies.log))
		mux.HandleFunc("POST "+inspect.ExecRoute, h.proxies.serve(h, rightToExec(), h.proxies.exec))
	}
	return mux
}

func (h inspectHandler) serve(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	doc, err := h.answer(ctx, r)
	if err != nil {
		refuse(w, err)
		return
	}
	writeJSON(w, http.StatusOK, doc)
}

func (h inspectHandler) answer(ctx context.Context, r *http.Request) (doc inspect.Document, err error) {
	namespace, name, err := h.admit(ctx, r, rightToGet())
	if err != nil {
		return doc, err
	}
	err = netns.Contain(func() error { doc, err = h.document(ctx, namespace, name); return err })
	if p, ok := errors.AsType[*netns.PanicError](err); ok {
		ctrl.Log.Error(p, "inspect panicked", "pod", namespace+"/"+name, "stack", string(p.Stack))
	}
	return doc, err
}

// admit returns which pod a request is about, if its caller has a right to it, and else a *inspect.Refusal.
func (h inspectHandler) admit(ctx context.Context, r *http.Request, to right) (namespace, name string, err error) {
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
	return namespace, name, h.check(ctx, token, to, namespace, name)
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

// inspectHTTP returns a server of one request a connection. It logs nothing: what a caller sends that is no TLS and no HTTP is no news.
func inspectHTTP(handler http.Handler) *http.Server {
	s := &http.Server{
		Handler: handler, ReadTimeout: timeout, WriteTimeout: 2 * timeout, MaxHeaderBytes: 1 << 15,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	s.SetKeepAlivesEnabled(false)
	return s
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
