package agent

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"istio-pod-network-controller/diagnostics/inspect"
	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/podnet"
)

// DefaultInspectSocket is where `inspect --local` asks: beside the socket of the health checks, in a directory that only the agent's pod has.
const DefaultInspectSocket = inspect.DefaultSocket

const inspectSocketName = "inspect.sock"

// inspectPorts is how many ports are tried, downwards: during an update two agents share the node's network, and each needs a port of its own.
const inspectPorts = 3

// inspector answers `inspect`: on the node's network over TLS, if addr is set, and on a socket of the pod's own, beside the one of the health checks.
// An agent that cannot answer programs pods nevertheless: why it cannot is logged.
type inspector struct {
	addr, healthAddr string
	look             *looker
	ports            *ports
	proxies          *proxyHandler
	at               *atomic.Pointer[agentstatus.Inspect] // where it answers on the node's network; nil: nowhere
}

// serve answers until stop is called.
func (i inspector) serve(ctx context.Context, config *rest.Config) (stop func()) {
	var stops []func()
	if l, err := i.socket(ctx); err != nil {
		logr.FromContextOrDiscard(ctx).Error(err, "inspect not served on a socket")
	} else if l != nil {
		stops = append(stops, serveOn(l, inspectHandler{document: i.look.document}.mux()))
	}
	if i.addr != "0" && i.addr != "" {
		stop, err := i.serveTLS(ctx, config)
		if err != nil {
			ctrl.Log.Error(err, "inspect not served", "addr", i.addr)
		} else {
			stops = append(stops, stop)
		}
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// podCache reads pods from the watch cache only: a caller must not be able to make the agent ask the API server for any pod.
type podCache struct{ from client.Reader }

func (p podCache) get(ctx context.Context, name types.NamespacedName) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	err := p.from.Get(ctx, name, pod)
	if apierrors.IsNotFound(err) {
		return nil, podnet.ErrNoPod
	}
	return pod, err
}

// socket listens where the sockets of the agent's pod are. Where health is served on a port, there is no such directory.
func (i inspector) socket(ctx context.Context) (net.Listener, error) {
	h, err := newHealth(i.healthAddr)
	if err != nil || h.network != "unix" {
		return nil, err
	}
	socket := health{network: "unix", address: filepath.Join(filepath.Dir(h.address), inspectSocketName)}
	return socket.listen(ctx)
}

// serveTLS listens at HOST:PORT, or the next port below that is free, with a certificate that is made now and is in memory only.
func (i inspector) serveTLS(ctx context.Context, config *rest.Config) (stop func(), err error) {
	who, err := newCallers(config)
	if err != nil {
		return nil, err
	}
	certificate, fingerprint, err := newCertificate(time.Now())
	if err != nil {
		return nil, err
	}
	secured := &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"}}
	documents := inspectHandler{document: i.look.document, check: who.check, proxies: i.proxies}.mux()
	listen := func(ctx context.Context) (net.Listener, error) {
		l, port, err := listenBelow(ctx, i.addr)
		if err == nil {
			i.at.Store(&agentstatus.Inspect{Port: port, Certificate: fingerprint})
		}
		return l, err
	}
	return i.ports.serve(ctx, "inspect", listen, func(ctx context.Context, l net.Listener) error {
		inside := newTunnel()
		defer serveOn(tls.NewListener(inside, secured), documents)()
		outside := http.NewServeMux()
		outside.Handle("/", documents)
		outside.Handle("GET "+inspect.TunnelPath, inside)
		defer serveOn(tls.NewListener(limitedListener{l, newLimits(inspectBounds())}, secured), outside)()
		<-ctx.Done()
		return nil
	}), nil
}

// serveOn serves until stop is called, which cuts off what is being answered.
func serveOn(l net.Listener, handler http.Handler) (stop func()) {
	server := inspectHTTP(handler)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			ctrl.Log.Error(err, "inspect no longer served", "addr", l.Addr().String())
		}
	}()
	return func() {
		_ = server.Close() // the listener's own error: it is not used any more
		<-done
	}
}

// listenBelow listens at HOST:PORT, or at one of the next ports below if that is taken. Port 0 is any.
func listenBelow(ctx context.Context, addr string) (net.Listener, int, error) {
	host, service, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, 0, fmt.Errorf("listen at %q: %w", addr, err)
	}
	first, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return nil, 0, fmt.Errorf("listen at %q: %w", addr, err)
	}
	var config net.ListenConfig
	var errs []error
	for i := range uint64(inspectPorts) {
		if i >= first && i > 0 {
			break
		}
		l, err := config.Listen(ctx, "tcp", net.JoinHostPort(host, strconv.FormatUint(first-i, 10)))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if at, ok := l.Addr().(*net.TCPAddr); ok {
			return l, at.Port, nil
		}
	}
	return nil, 0, errors.Join(errs...)
}

// ValidateInspectAddr returns an error for an address that Options.InspectAddr cannot be.
func ValidateInspectAddr(addr string) error {
	if addr == "0" {
		return nil
	}
	_, service, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	if port, err := strconv.ParseUint(service, 10, 16); err != nil || port == 0 {
		return fmt.Errorf("port %q: want a number from 1 to 65535", service)
	}
	return nil
}

// newCertificate makes a certificate that callers know by its fingerprint. It does not end: the agent may run for years.
func newCertificate(now time.Time) (cert tls.Certificate, fingerprint string, err error) {
	made, err := selfSigned(now, now.AddDate(100, 0, 0))
	if err != nil {
		return cert, "", fmt.Errorf("make a certificate: %w", err)
	}
	sum := sha256.Sum256(made.Certificate[0])
	return *made, hex.EncodeToString(sum[:]), nil
}
