package agent

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/manager"

	"istio-pod-network-controller/internal/serving"
)

// DefaultHealthAddr is in a directory that only the agent's pod has. The directory of the CNI plugin's socket is the node's: where
// /var/run is a link to /run, the two must not be the same directory.
const DefaultHealthAddr = "unix:///run/istio-pod-network-health/health.sock"

const (
	// maxSocketPath is the longest path that fits the kernel's sun_path.
	maxSocketPath = 107
	// healthTimeout bounds a request; each check takes at most checkTimeout.
	healthTimeout = 5 * time.Second
)

// startPatience is how long a start may take until /startz passes in any case.
const startPatience = 15 * time.Second

// health answers the kubelet at /healthz, /readyz and /startz. controller-runtime's own server listens on TCP only. During an update two agents
// share the node's network, and the kubelet must reach each of them: so each listens on a socket file in its own pod.
type health struct {
	network, address string // both empty: not served
}

// ValidateHealthAddr returns an error for an address that Options.HealthAddr cannot be.
func ValidateHealthAddr(addr string) error {
	_, err := newHealth(addr)
	return err
}

// newHealth parses an address: unix:///PATH, HOST:PORT, or 0 for none.
func newHealth(addr string) (*health, error) {
	if addr == "0" {
		return &health{}, nil
	}
	path, ok := strings.CutPrefix(addr, "unix:")
	if !ok {
		_, _, err := net.SplitHostPort(addr)
		return &health{"tcp", addr}, err
	}
	path = strings.TrimPrefix(path, "//")
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/" || len(path) > maxSocketPath {
		return nil, fmt.Errorf("socket %q: want an absolute path of at most %d bytes", path, maxSocketPath)
	}
	return &health{"unix", path}, nil
}

// serve answers requests until stop is called. It returns an error if it cannot make its socket.
func (h *health) serve(ctx context.Context, ready *readiness, p *serving.Ports) (stop func(), err error) {
	listen := h.listen
	switch h.network {
	case "":
		return func() {}, nil
	case "unix":
		first, err := h.listen(ctx)
		if err != nil {
			return nil, fmt.Errorf("serve health: %w", err)
		}
		listen = func(ctx context.Context) (l net.Listener, err error) {
			if l, first = first, nil; l != nil {
				return l, nil
			}
			return h.listen(ctx)
		}
	}
	return p.Serve(ctx, "health", listen, func(ctx context.Context, l net.Listener) error { return healthServer(l, ready).Start(ctx) }), nil
}

func healthServer(l net.Listener, ready *readiness) *manager.Server {
	mux := http.NewServeMux()
	mux.Handle("/healthz", checkHandler{check: ready.live})
	mux.Handle("/readyz", checkHandler{details: func() string { return ": " + ready.summary() }, check: ready.check})
	mux.Handle("/startz", checkHandler{check: ready.started(time.Now().Add(startPatience))})
	for _, p := range ready.parts {
		mux.Handle("/readyz/"+p.name, checkHandler{check: p.bounded})
	}
	return &manager.Server{
		Name: "health probe", Listener: l, ShutdownTimeout: new(healthTimeout),
		Server: &http.Server{
			Handler: mux, ReadTimeout: healthTimeout, WriteTimeout: healthTimeout, IdleTimeout: healthTimeout, MaxHeaderBytes: 1 << 14,
		},
	}
}

// listen opens the address.
func (h *health) listen(ctx context.Context) (net.Listener, error) {
	if h.network == "unix" {
		return serving.Socket(ctx, h.address)
	}
	return (&net.ListenConfig{}).Listen(ctx, h.network, h.address)
}

// checkHandler answers 200 with "ok" and the text of more, which may be nil, or 500 with the failed checks. controller-runtime leaves the
// reasons out, since anybody may reach its port; here the kubelet puts them into an event.
type checkHandler struct {
	details func() string
	check   func(context.Context) error
}

// ServeHTTP runs the check and writes its outcome.
func (v checkHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := v.check(r.Context()); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = fmt.Fprint(w, "ok")
	if v.details != nil {
		_, _ = fmt.Fprint(w, v.details())
	}
}
