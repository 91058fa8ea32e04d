package agent

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	goruntime "runtime"
	"time"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// profileTimeout bounds a request: a CPU profile takes as long as its query asks for.
const profileTimeout = 5 * time.Minute

// servePprof serves Go's profiles at HOST:PORT until stop is called; 0 means nowhere. Two agents of an update share the port, as they
// share the port of the metrics.
func servePprof(ctx context.Context, addr string) (stop func(), err error) {
	if addr == "0" || addr == "" {
		goruntime.MemProfileRate = 0 // nobody will ask, and it costs some percent of the time
		return func() {}, nil
	}
	config := sharedPort()
	l, err := config.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("serve profiles: %w", err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := pprofServer(l).Start(logr.NewContext(ctx, ctrl.Log)); err != nil {
			ctrl.Log.Error(err, "profiles not served")
		}
	}()
	return func() { cancel(); <-done }, nil
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
