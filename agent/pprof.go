package agent

import (
	"context"
	"net"
	"net/http"
	"net/http/pprof"
	goruntime "runtime"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/manager"

	"istio-pod-network-controller/internal/serving"
)

// profileTimeout bounds a request: a CPU profile takes as long as its query asks for.
const profileTimeout = 5 * time.Minute

// servePprof serves Go's profiles at HOST:PORT until stop is called; 0 means nowhere. Two agents of an update share the port, as they
// share the port of the metrics.
func servePprof(ctx context.Context, p *serving.Ports, addr string) (stop func()) {
	if addr == "0" || addr == "" {
		goruntime.MemProfileRate = 0 // nobody will ask, and it costs some percent of the time
		return func() {}
	}
	return p.Serve(ctx, "pprof", serving.Shared(addr), func(ctx context.Context, l net.Listener) error { return pprofServer(l).Start(ctx) })
}

// pprofServer has a mux of its own, so that no other server of the agent has these paths. On shutdown a profile that is being taken
// is cut off.
func pprofServer(l net.Listener) *manager.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index) // and every named profile
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return &manager.Server{
		Name: "pprof", Listener: l, ShutdownTimeout: new(time.Second),
		Server: &http.Server{
			Handler: mux, ReadTimeout: healthTimeout, WriteTimeout: profileTimeout, IdleTimeout: healthTimeout, MaxHeaderBytes: 1 << 14,
		},
	}
}
