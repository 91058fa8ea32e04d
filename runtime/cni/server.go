package cni

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"istio-pod-network-controller/internal/podnet"
)

// Handler does what the plugin asks for. The pod's owner reads its errors. UID may be empty: some runtimes do not pass it. Check repairs,
// and fails only if rules are missing and could not be applied: a runtime may drop the network of a sandbox whose CHECK
// fails.
type Handler interface {
	Add(ctx context.Context, s podnet.Sandbox) error
	Check(ctx context.Context, s podnet.Sandbox) error
	Del(ctx context.Context, s podnet.Sandbox) error
}

// Config is what a Server needs. Path, Handler and Ready are required.
type Config struct {
	// Path is the socket's path.
	Path    string
	Handler Handler
	// Ready returns why a sandbox could not be programmed now, or nil. It answers CNI's STATUS.
	Ready func(context.Context) error
	// Concurrency bounds the requests that are worked on, 64 unless set. Others wait in the socket's queue.
	Concurrency int
	Log         *slog.Logger
}

// Server is the agent's end of the socket. It serves root only, which could program a sandbox without the agent as well. A peer that is
// silent, sends too much or sends invalid data occupies one slot for a bounded time and does no other harm.
//
// During an update there are two agents, and the newest has the path. When it ends or dies, the older agent takes the path back: so an
// agent that cannot start does not stop new pods on the node.
type Server struct {
	config        Config
	timeout       time.Duration            // of the Handler's work on one request: below the plugin's own, or people would not read the agent's error
	readTimeout   time.Duration            // of waiting for a peer to send or read
	watchInterval time.Duration            // between two checks whether the socket's path still leads to an agent
	uid           uint32                   // the only user that is served: root
	listener      atomic.Pointer[listener] // nil while it does not listen
	fault         atomic.Pointer[error]    // why the socket could not be made the last time
}

// NewServer checks the configuration.
func NewServer(c Config) (*Server, error) {
	if err := validatePath(c.Path); err != nil {
		return nil, err
	}
	if c.Handler == nil || c.Ready == nil || c.Log == nil {
		return nil, errors.New("make CNI server: Handler, Ready and Log are required")
	}
	c.Concurrency = cmp.Or(max(c.Concurrency, 0), 64)
	return &Server{config: c, timeout: 5 * time.Second, readTimeout: 2 * time.Second, watchInterval: time.Second}, nil
}

// Check returns why the plugin's requests cannot reach this agent, or nil.
func (s *Server) Check() error {
	if s.listener.Load() != nil {
		return nil
	}
	err := fmt.Errorf("the agent does not listen at %s", s.config.Path)
	if fault := s.fault.Load(); fault != nil && *fault != nil {
		err = fmt.Errorf("%w: %w", err, *fault)
	}
	return err
}

// Served reports whether the plugin's requests reach this agent, and not the node's other agent during an update.
func (s *Server) Served() bool {
	l := s.listener.Load()
	return l != nil && l.ownsPath()
}

// Start serves until ctx ends, then finishes the requests that have begun. If the socket cannot be made, it tries again, since the agent has other
// hooks. It is a manager.Runnable.
func (s *Server) Start(ctx context.Context) error {
	var busy sync.WaitGroup
	defer busy.Wait()
	defer s.listener.Store(nil)
	slots := make(chan struct{}, s.config.Concurrency)
	for ctx.Err() == nil {
		l, err := listen(s.config.Path)
		s.fault.Store(&err)
		if err != nil {
			s.listener.Store(nil)
			s.config.Log.Error("socket not made", "hook", "cni", "socket", s.config.Path, "error", err)
			wait(ctx, s.watchInterval)
			continue
		}
		s.config.Log.Info("socket made", "hook", "cni", "socket", s.config.Path)
		s.listener.Store(l)
		busy.Go(func() { s.watchPath(ctx, l) })
		s.accept(ctx, l, slots, &busy)
		l.stop()
	}
	return nil
}

// watchPath closes the socket when ctx ends, or when the path leads neither to this agent nor to another one.
func (s *Server) watchPath(ctx context.Context, l *listener) {
	defer l.stop()
	tick := time.NewTicker(s.watchInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !l.ownsPath() && abandoned(ctx, s.config.Path, s.readTimeout) {
			return
		}
	}
}

// accept serves connections until the socket is closed.
func (s *Server) accept(ctx context.Context, l *listener, slots chan struct{}, busy *sync.WaitGroup) {
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		conn, err := l.AcceptUnix()
		if err == nil {
			busy.Go(func() {
				defer func() { <-slots }()
				s.serve(ctx, conn)
			})
			continue
		}
		<-slots
		if errors.Is(err, net.ErrClosed) {
			return
		}
		s.config.Log.Error("connection not accepted", "hook", "cni", "error", err)
		wait(ctx, s.readTimeout) // probably out of descriptors
	}
}

// serve answers one connection. A request that has begun is finished even if the agent is told to stop.
func (s *Server) serve(ctx context.Context, conn *net.UnixConn) {
	defer conn.Close()
	defer s.contain()
	r, err := s.read(conn)
	if err != nil {
		s.config.Log.Warn("peer cut off", "hook", "cni", "error", err)
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.limit(r.Command))
	defer cancel()
	start := time.Now()
	err = s.dispatch(ctx, r)
	if r.Command == cmdCheck && ctx.Err() != nil {
		s.config.Log.Warn("CHECK passed: not finished in time", "hook", "cni", "sandbox", r.Sandbox.ID, "error", err)
		err = nil // nothing is known to be missing
	}
	s.logResult(r, err, time.Since(start))
	a := answer{OK: err == nil}
	if err != nil {
		a.Error = truncated(err)
	}
	if err := write(conn, a, s.readTimeout); err != nil {
		s.config.Log.Warn("answer not delivered", "hook", "cni", "command", r.Command, "sandbox", r.Sandbox.ID, "error", err)
	}
}

// contain ends a panic, since all pods of the node need the agent. The plugin of the one request gets no answer, as from an agent that has died. It is
// deferred.
func (s *Server) contain() {
	if panicked := recover(); panicked != nil {
		s.config.Log.Error("handler panicked", "hook", "cni", "panic", fmt.Sprint(panicked), "stack", string(debug.Stack()))
	}
}

// checkLimit is below the plugin's own limit for CHECK.
const checkLimit = checkTimeout * 4 / 5

// limit returns how long the Handler may work on one request.
func (s *Server) limit(command string) time.Duration {
	if command == cmdCheck {
		return min(s.timeout, checkLimit)
	}
	return s.timeout
}

// read reads one packet, if the peer is the user that is served.
func (s *Server) read(conn *net.UnixConn) (request, error) {
	uid, err := peer(conn)
	if err != nil {
		return request{}, fmt.Errorf("identify peer: %w", err)
	}
	if uid != s.uid {
		return request{}, fmt.Errorf("peer is user %d, only user %d is served", uid, s.uid)
	}
	if err := conn.SetDeadline(time.Now().Add(s.readTimeout)); err != nil {
		return request{}, err
	}
	buf := make([]byte, maxMessage+1)
	n, err := conn.Read(buf)
	if err != nil {
		return request{}, fmt.Errorf("read request: %w", err)
	}
	if n > maxMessage {
		return request{}, fmt.Errorf("read request: larger than %d bytes", maxMessage)
	}
	var r request
	if err := json.Unmarshal(buf[:n], &r); err != nil {
		return request{}, fmt.Errorf("read request: %w", err)
	}
	return r, nil
}

func (s *Server) dispatch(ctx context.Context, r request) error {
	if r.Command == cmdStatus {
		return s.config.Ready(ctx)
	}
	if err := validate(r.Sandbox); err != nil {
		return err
	}
	// Only these fields are accepted: the CNI chain does not know the others.
	sandbox := podnet.Sandbox{Namespace: r.Sandbox.Namespace, Name: r.Sandbox.Name, UID: r.Sandbox.UID, ID: r.Sandbox.ID, NetNS: r.Sandbox.NetNS}
	switch r.Command {
	case cmdDel:
		return s.config.Handler.Del(ctx, sandbox)
	case cmdAdd, cmdCheck:
		if sandbox.NetNS == "" {
			return errors.New("network namespace: required")
		}
		if r.Command == cmdAdd {
			return s.config.Handler.Add(ctx, sandbox)
		}
		return s.config.Handler.Check(ctx, sandbox)
	}
	return fmt.Errorf("command %.20q: not known to this agent", r.Command)
}

func (s *Server) logResult(r request, err error, took time.Duration) {
	log := s.config.Log.With("hook", "cni", "command", r.Command, "pod", r.Sandbox.Pod(), "sandbox", r.Sandbox.ID, "netns", r.Sandbox.NetNS, "duration", took)
	switch {
	case err == nil:
		log.Debug("request served")
	case r.Command == cmdStatus: // called every few seconds; the node's condition shows the answer
		log.Debug("not ready", "error", err)
	default:
		log.Error("request refused", "error", err)
	}
}
