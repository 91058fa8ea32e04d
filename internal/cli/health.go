package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// defaultHealthAddr is in a directory of the pod alone, and not in that of the CNI plugin's socket, which is the node's:
// where /var/run is a link to /run, the two would be one.
const defaultHealthAddr = "unix:///run/istio-pod-network-health/health.sock"

const (
	// maxSocketPath is what the kernel's sun_path holds.
	maxSocketPath = 107
	// healthTimeout bounds a request; checks take checkTimeout at most.
	healthTimeout = 5 * time.Second
)

// health answers the kubelet at /healthz and /readyz. controller-runtime's own answers on TCP only; but the agents of an
// update, which share the node's network, must each be asked at an address of its own: a socket file in its pod.
type health struct {
	network, address string // both empty: nowhere
	alive, ready     map[string]healthz.Checker
}

// newHealth reads an address: unix:///PATH, HOST:PORT, or 0 for none.
func newHealth(addr string) (*health, error) {
	h := &health{
		network: "tcp", address: addr,
		alive: map[string]healthz.Checker{"ping": healthz.Ping}, ready: map[string]healthz.Checker{},
	}
	if addr == "0" {
		h.network, h.address = "", ""
		return h, nil
	}
	path, ok := strings.CutPrefix(addr, "unix:")
	if !ok {
		_, _, err := net.SplitHostPort(addr)
		return h, err
	}
	path = strings.TrimPrefix(path, "//")
	h.network, h.address = "unix", path
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/" || len(path) > maxSocketPath {
		return nil, fmt.Errorf("socket %q: want an absolute path of at most %d bytes", path, maxSocketPath)
	}
	return h, nil
}

// addTo serves the checks, from before the caches are filled until everything else has stopped. It listens at once, so
// that an address which cannot be had is an error here.
func (h *health) addTo(ctx context.Context, mgr manager.Manager) error {
	if h.network == "" {
		return nil
	}
	l, err := h.listen(ctx)
	if err != nil {
		return fmt.Errorf("serve health: %w", err)
	}
	return mgr.Add(h.server(l))
}

func (h *health) server(l net.Listener) *manager.Server {
	mux := http.NewServeMux()
	for path, checks := range map[string]map[string]healthz.Checker{"/healthz": h.alive, "/readyz": h.ready} {
		mux.Handle(path, verdict(checks))
		for name, check := range checks {
			mux.Handle(path+"/"+name, healthz.CheckHandler{Checker: check})
		}
	}
	return &manager.Server{
		Name: "health probe", Listener: l, ShutdownTimeout: new(healthTimeout),
		Server: &http.Server{
			Handler: mux, ReadTimeout: healthTimeout, WriteTimeout: healthTimeout, IdleTimeout: healthTimeout, MaxHeaderBytes: 1 << 14,
		},
	}
}

// listen takes the address. A socket file that a killed container has left is replaced; it is root's alone.
func (h *health) listen(ctx context.Context) (net.Listener, error) {
	var config net.ListenConfig
	if h.network != "unix" {
		return config.Listen(ctx, h.network, h.address)
	}
	if err := os.MkdirAll(filepath.Dir(h.address), 0o700); err != nil {
		return nil, err
	}
	switch there, err := os.Lstat(h.address); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case there.Mode().Type() != os.ModeSocket:
		return nil, fmt.Errorf("%s is in the way: it is not a socket", h.address)
	default:
		if err := os.Remove(h.address); err != nil {
			return nil, err
		}
	}
	l, err := config.Listen(ctx, h.network, h.address)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(h.address, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// verdict is 200, or 500 with what the checks have to say. healthz.Handler, made for ports that the world may ask, keeps
// the reasons to itself; here they become the kubelet's event.
type verdict map[string]healthz.Checker

// ServeHTTP makes all checks at once.
func (v verdict) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	names := slices.Sorted(maps.Keys(v))
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() { errs[i] = v[name](r) })
	}
	wg.Wait()
	var faults []string
	for i, err := range errs {
		if err != nil {
			faults = append(faults, names[i]+": "+err.Error())
		}
	}
	if len(faults) > 0 {
		http.Error(w, strings.Join(faults, "\n"), http.StatusInternalServerError)
		return
	}
	_, _ = fmt.Fprint(w, "ok")
}
