package nri

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
)

// errSilent means that the runtime accepted the connection and then did not answer.
var errSilent = errors.New("the runtime does not answer")

// errLost means that the connection ended before the runtime had configured the plugin.
var errLost = errors.New("the connection has ended before the runtime had configured the plugin")

// lostGrace is how long the stub has to notice that its connection has ended.
const lostGrace = 50 * time.Millisecond

// session is one connection to the runtime, and implements the plugin for the stub.
type session struct {
	*plugin
	hook      *Hook
	abandoned atomic.Pointer[error] // why the connection was closed before it was configured
	ended     atomic.Bool
}

// Configure is called once, before anything else. The stub reads the runtime's limits. It fails for a session that was given up.
func (s *session) Configure(context.Context, string, string, string) (api.EventMask, error) {
	if err := s.abandoned.Load(); err != nil {
		return 0, *err
	}
	return 0, nil
}

// Synchronize is called when the runtime has registered the plugin: from now on it calls us.
func (s *session) Synchronize(ctx context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	update, err := s.plugin.Synchronize(ctx, pods, containers)
	s.hook.connection.Store(s)
	if s.ended.Load() { // meanwhile
		s.closed()
	}
	s.hook.noteCalled()
	return update, err
}

// closed is called by the stub when the connection has ended; there may already be another one.
func (s *session) closed() {
	s.ended.Store(true)
	s.hook.connection.CompareAndSwap(s, nil)
}

// connect serves one connection until it ends. When ctx ends, it goes on answering until a gap between calls, and then disconnects.
func (e *Hook) connect(ctx context.Context, p *plugin) error {
	conn, err := e.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // the stub has closed it
	e.noteAccepted()
	s := &session{plugin: p, hook: e}
	defer s.closed()
	st, err := e.newStub(s, conn)
	if err != nil {
		return fmt.Errorf("make NRI stub: %w", err)
	}
	p.calls.setLimit(st.RequestTimeout) // known once the runtime has configured the plugin
	if err := e.startStub(ctx, st, s, conn); err != nil {
		return fmt.Errorf("register with the runtime: %w", err)
	}
	stop := context.AfterFunc(ctx, func() {
		p.calls.awaitQuiet()
		st.Stop()
	})
	defer stop()
	st.Wait()
	return errors.New("the connection has ended")
}

func (e *Hook) dial(ctx context.Context) (*watchedConn, error) {
	conn, err := (&net.Dialer{Timeout: e.startLimit}).DialContext(ctx, "unix", e.config.Socket)
	if err != nil {
		return nil, err
	}
	return &watchedConn{Conn: conn, ended: make(chan struct{})}, nil
}

func (e *Hook) newStub(s *session, conn net.Conn) (stub.Stub, error) {
	var called any = s
	if e.config.Stopped != nil { // the stub asks the runtime for the calls that the type has
		called = stoppedSession{s}
	}
	return stub.New(called,
		stub.WithLogger(stubLog{s.log}), // first, since other options log
		stub.WithPluginName(e.config.Name), stub.WithPluginIdx(e.config.Index), stub.WithConnection(conn),
		// Without it, older stubs exit the process when the connection ends (containerd/nri#173).
		stub.WithOnClose(s.closed),
		stub.WithFailurePolicy(e.failurePolicy()),
	)
}

// failurePolicy asks runtimes that know it (NRI 0.12.4) to refuse pods when the plugin is too slow or dies; others ignore it. It holds for every call:
// with the ends of containers subscribed, no container could be ended while the agent hangs.
func (e *Hook) failurePolicy() *api.FailurePolicy {
	return &api.FailurePolicy{FailRequest: !e.config.FailOpen && e.config.Stopped == nil, KeepConnected: true}
}

// startStub calls st.Start and returns after startLimit at the latest. Start itself waits for the runtime's Configure for ever, with
// its lock held, even after the runtime has gone.
func (e *Hook) startStub(ctx context.Context, st stub.Stub, s *session, conn *watchedConn) error {
	started := make(chan error, 1)
	// Calls get this context. They are answered while the agent ends, so it must not end with ctx.
	go func() { started <- st.Start(context.WithoutCancel(ctx)) }()
	limit := time.NewTimer(e.startLimit)
	defer limit.Stop()
	reason := errSilent
	select {
	case err := <-started:
		return err
	case <-limit.C:
	case <-ctx.Done():
		reason = ctx.Err()
	case <-conn.ended:
		reason = errLost
		limit.Reset(lostGrace)
		select {
		case err := <-started:
			return err
		case <-limit.C:
		}
	}
	s.abandoned.Store(&reason)
	s.calls.setLimit(unknownLimit)
	unblockStart(ctx, st, conn)
	return reason
}

// unblockStart ends a Start that waits for the runtime's Configure: it calls Configure itself, which fails.
func unblockStart(ctx context.Context, st stub.Stub, conn *watchedConn) {
	_ = conn.Close()
	if c, ok := st.(api.PluginService); ok && conn.used.Load() {
		go c.Configure(context.WithoutCancel(ctx), &api.ConfigureRequest{}) //nolint:errcheck // it fails, which makes Start return
	}
}

// watchedConn reports when it has ended, and whether anything was sent.
type watchedConn struct {
	net.Conn
	used  atomic.Bool
	once  sync.Once
	ended chan struct{}
}

// Read closes ended at the first error.
func (c *watchedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil {
		c.once.Do(func() { close(c.ended) })
	}
	return n, err
}

// Write notes that something was sent.
func (c *watchedConn) Write(b []byte) (int, error) {
	c.used.Store(true)
	return c.Conn.Write(b)
}
