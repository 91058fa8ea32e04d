package serving

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"syscall"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	ctrl "sigs.k8s.io/controller-runtime"

	"istio-pod-network-controller/internal/jitter"
)

// Ports serves the agent's TCP ports. A port that another program has, or whose server fails, ends nothing: it is logged, /readyz names it, and it is
// tried again until it is served. The zero value is ready.
type Ports struct {
	mu     sync.Mutex
	faults map[string]error // by what is to be served there
}

// Serve listens, and serves what start serves on the listener, until stop is called.
func (p *Ports) Serve(
	ctx context.Context, name string, listen func(context.Context) (net.Listener, error), start func(context.Context, net.Listener) error,
) (stop func()) {
	ctx, cancel := context.WithCancel(logr.NewContext(context.WithoutCancel(ctx), ctrl.Log))
	l, err := listen(ctx)
	p.note(name, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for failures := 1; ; failures++ {
			if err == nil {
				if err = start(ctx, l); err == nil || ctx.Err() != nil {
					return
				}
				p.note(name, err)
			}
			if !jitter.Wait(ctx, jitter.Bound(failures)) {
				return
			}
			l, err = listen(ctx)
			p.note(name, err)
		}
	}()
	return func() { cancel(); <-done }
}

// note notes whether a port is served, and logs the first fault and the end of it.
func (p *Ports) note(name string, err error) {
	switch before := p.swap(name, err); {
	case err != nil && before == nil:
		ctrl.Log.Info("port not served", "port", name, "reason", err.Error())
	case err == nil && before != nil:
		ctrl.Log.Info("port served", "port", name)
	}
}

// swap stores the fault of a port, or none, and returns the former one.
func (p *Ports) swap(name string, err error) (before error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before = p.faults[name]
	if p.faults == nil {
		p.faults = map[string]error{}
	}
	delete(p.faults, name)
	if err != nil {
		p.faults[name] = fmt.Errorf("%s is not served: %w", name, err)
	}
	return before
}

// Check returns an error that names each port that is not served, or nil.
func (p *Ports) Check(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	errs := make([]error, 0, len(p.faults))
	for _, name := range slices.Sorted(maps.Keys(p.faults)) {
		errs = append(errs, p.faults[name])
	}
	return errors.Join(errs...)
}

// Shared returns a function that listens at a port with SO_REUSEPORT: during an update the old and the new agent listen on the same port of
// the node, and the kernel distributes connections between them.
func Shared(addr string) func(context.Context) (net.Listener, error) {
	config := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) error {
		var errOption error
		err := conn.Control(func(fd uintptr) { errOption = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
		return errors.Join(err, errOption)
	}}
	return func(ctx context.Context) (net.Listener, error) { return config.Listen(ctx, "tcp", addr) }
}
