// Package inspectserver is the agent's side of inspect: it says what is programmed in a pod of its node, and why, to callers who may get that pod.
package inspectserver

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	"istio-pod-network-controller/diagnostics/inspect"
	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/serving"
)

// ports is how many ports are tried, downwards: during an update two agents share the node's network, and each needs a port of its own.
const ports = 3

// Server answers `inspect`: on the node's network over TLS at Addr, and on a socket of the pod's own; each may be empty. An agent that cannot answer
// programs pods nevertheless: why it cannot is logged.
type Server struct {
	Name         string // of the certificate
	Addr, Socket string
	Look         *Looker
	Ports        *serving.Ports
	Proxies      ProxyAccess                          // nil: the agent runs none
	At           *atomic.Pointer[agentstatus.Inspect] // where it answers on the node's network; nil: nowhere
}

// Serve answers until stop is called.
func (i Server) Serve(ctx context.Context, config *rest.Config) (stop func()) {
	var stops []func()
	if i.Socket != "" {
		l, err := serving.Socket(ctx, i.Socket)
		if err != nil {
			logr.FromContextOrDiscard(ctx).Error(err, "inspect not served on a socket")
		} else {
			stops = append(stops, serveOn(l, handler{look: i.Look}.mux()))
		}
	}
	if i.Addr != "" {
		stop, err := i.serveTLS(ctx, config)
		if err != nil {
			ctrl.Log.Error(err, "inspect not served", "addr", i.Addr)
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

// serveTLS listens at HOST:PORT, or the next port below that is free, with a certificate that is made now and is in memory only.
func (i Server) serveTLS(ctx context.Context, config *rest.Config) (stop func(), err error) {
	who, err := newCallers(config)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	certificate, err := serving.SelfSigned(i.Name, now, now.AddDate(100, 0, 0)) // it does not end: the agent may run for years
	if err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	fingerprint := sha256.Sum256(certificate.Certificate[0])
	secured := &tls.Config{Certificates: []tls.Certificate{*certificate}, MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"}}
	documents := handler{look: i.Look, check: who.check, proxies: i.Proxies, line: make(chan struct{}, proxiesAtOnce)}.mux()
	listen := func(ctx context.Context) (net.Listener, error) {
		l, port, err := serving.Below(ctx, i.Addr, ports)
		if err == nil {
			i.At.Store(&agentstatus.Inspect{Port: port, Certificate: hex.EncodeToString(fingerprint[:])})
		}
		return l, err
	}
	return i.Ports.Serve(ctx, "inspect", listen, func(ctx context.Context, l net.Listener) error {
		inside := newTunnel()
		defer serveOn(tls.NewListener(inside, secured), documents)()
		outside := http.NewServeMux()
		outside.Handle("/", documents)
		outside.Handle("GET "+inspect.TunnelPath, inside)
		defer serveOn(tls.NewListener(serving.Limit(l, bounds()), secured), outside)()
		<-ctx.Done()
		return nil
	}), nil
}

// bounds limit connections to the port, each of which is one request. They are taken before anything is read, so a caller without rights
// costs a TLS handshake at most: some 20 a second cost about a hundredth of a processor. All callers by way of the API server share its address.
func bounds() serving.Bounds {
	return serving.Bounds{RateEach: 5, Rate: 20, BurstEach: 20, Burst: 40, OpenEach: 8, Open: 32}
}

// serveOn serves one request a connection until stop is called, which cuts off what is being answered. What a caller sends that is no TLS and no
// HTTP is no news, and not logged.
func serveOn(l net.Listener, handler http.Handler) (stop func()) {
	server := &http.Server{
		Handler: handler, ReadTimeout: timeout, WriteTimeout: 2 * timeout, MaxHeaderBytes: 1 << 15,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	server.SetKeepAlivesEnabled(false)
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
