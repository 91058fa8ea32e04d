package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"istio-pod-network-controller/internal/podnet"
)

// Handler does what the plugin asks for. Errors go to the pod's owner word for word. UID may be empty: some runtimes do not
// tell it. Check repairs, and fails only where rules are missing and could not be put in: a runtime may take the network from a
// sandbox whose CHECK fails.
type Handler interface {
	Add(ctx context.Context, s podnet.Sandbox) error
	Check(ctx context.Context, s podnet.Sandbox) error
	Del(ctx context.Context, s podnet.Sandbox) error
}

// Config is what a Server needs. Path, Handler and Ready are required.
type Config struct {
	// Path is the socket's.
	Path    string
	Handler Handler
	// Ready tells why a sandbox could not be programmed now. It is CNI's STATUS.
	Ready func(context.Context) error
	// Timeout bounds what the Handler does about one request, 5 s unless set. Keep it below the plugin's own timeout, so
	// that people read an error of ours and not that the agent is away.
	Timeout time.Duration
	// ReadTimeout bounds how long a peer may keep us waiting, 2 s unless set.
	ReadTimeout time.Duration
	// Watch is how often the Server looks whether its socket's path still leads to an agent, 1 s unless set.
	Watch time.Duration
	// Concurrency bounds the requests at work, 64 unless set. Further ones wait in the socket's queue.
	Concurrency int
	// UID is the only user who is served: root, unless set.
	UID uint32
	Log *slog.Logger
}

// Server is the agent's end of the socket. Whoever may ask for a sandbox to be programmed could as well do it without us,
// so it serves root only; and since even root's programs go wrong, a peer that is silent, too long or unintelligible costs
// one slot for a bounded time and nothing else.
//
// While an update is under way two agents are there, and the newest to start has the path. When it leaves, or dies, the one
// that is still there takes the path back; so nobody's failure to start closes the node to new pods.
type Server struct {
	config Config
	at     atomic.Pointer[listener] // nil while it does not listen
}

// NewServer checks the configuration.
func NewServer(c Config) (*Server, error) {
	if err := validatePath(c.Path); err != nil {
		return nil, err
	}
	if c.Handler == nil || c.Ready == nil || c.Log == nil {
		return nil, errors.New("make CNI server: Handler, Ready and Log are required")
	}
	if c.Timeout <= 0 {
		c.Timeout = 5 * time.Second
	}
	if c.ReadTimeout <= 0 {
		c.ReadTimeout = 2 * time.Second
	}
	if c.Watch <= 0 {
		c.Watch = time.Second
	}
	if c.Concurrency <= 0 {
		c.Concurrency = 64
	}
	return &Server{config: c}, nil
}

// Check tells why the plugin's requests could not come here.
func (s *Server) Check() error {
	if s.at.Load() != nil {
		return nil
	}
	return fmt.Errorf("the agent does not listen at %s", s.config.Path)
}

// Served reports whether the plugin's requests come to this agent, and not to another one that is on the node during an update.
func (s *Server) Served() bool {
	l := s.at.Load()
	return l != nil && l.has()
}

// Start serves until ctx ends, then finishes what it has begun. A socket that cannot be made at first is an error; one that cannot be
// taken back later is tried again: the agent has other entrances. It is a manager.Runnable.
func (s *Server) Start(ctx context.Context) error {
	var busy sync.WaitGroup
	defer busy.Wait()
	defer s.at.Store(nil)
	slots := make(chan struct{}, s.config.Concurrency)
	for served := false; ctx.Err() == nil; served = true {
		l, err := listen(s.config.Path)
		switch {
		case err != nil && !served:
			return fmt.Errorf("listen for the CNI plugin: %w", err)
		case err != nil:
			s.at.Store(nil)
			s.config.Log.Error("socket not taken back", "entrance", "cni", "socket", s.config.Path, "error", err)
			pause(ctx, s.config.Watch)
			continue
		case served:
			s.config.Log.Info("socket taken back", "entrance", "cni", "socket", s.config.Path)
		}
		s.at.Store(l)
		busy.Go(func() { s.keep(ctx, l) })
		s.accept(ctx, l, slots, &busy)
		l.stop()
	}
	return nil
}

// keep closes the socket when ctx ends, or when its path leads to no agent any more, neither to this one nor to another.
func (s *Server) keep(ctx context.Context, l *listener) {
	defer l.stop()
	tick := time.NewTicker(s.config.Watch)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !l.has() && abandoned(ctx, s.config.Path, s.config.ReadTimeout) {
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
		s.config.Log.Error("connection not accepted", "entrance", "cni", "error", err)
		pause(ctx, s.config.ReadTimeout) // out of descriptors, most likely
	}
}

// serve answers one connection. A request that has begun is not cut off when the agent is told to stop.
func (s *Server) serve(ctx context.Context, conn *net.UnixConn) {
	defer conn.Close()
	r, err := s.read(conn)
	if err != nil {
		s.config.Log.Warn("peer cut off", "entrance", "cni", "error", err)
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.limit(r.Command))
	defer cancel()
	start := time.Now()
	err = s.do(ctx, r)
	if r.Command == cmdCheck && ctx.Err() != nil {
		s.config.Log.Warn("CHECK passed without a look: no time", "entrance", "cni", "sandbox", r.Sandbox.ID, "error", err)
		err = nil // nothing is known to be missing
	}
	s.logged(r, err, time.Since(start))
	a := answer{OK: err == nil}
	if err != nil {
		a.Error = short(err)
	}
	if err := write(conn, a, s.config.ReadTimeout); err != nil {
		s.config.Log.Warn("answer not delivered", "entrance", "cni", "command", r.Command, "sandbox", r.Sandbox.ID, "error", err)
	}
}

// checkLimit is below the plugin's own limit for CHECK.
const checkLimit = checkTimeout * 4 / 5

// limit bounds what the Handler does about one request.
func (s *Server) limit(command string) time.Duration {
	if command == cmdCheck {
		return min(s.config.Timeout, checkLimit)
	}
	return s.config.Timeout
}

// read takes one packet from a peer that may talk to us.
func (s *Server) read(conn *net.UnixConn) (request, error) {
	uid, err := peer(conn)
	if err != nil {
		return request{}, fmt.Errorf("identify peer: %w", err)
	}
	if uid != s.config.UID {
		return request{}, fmt.Errorf("peer is user %d, only user %d is served", uid, s.config.UID)
	}
	if err := conn.SetDeadline(time.Now().Add(s.config.ReadTimeout)); err != nil {
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

func (s *Server) do(ctx context.Context, r request) error {
	if r.Command == cmdStatus {
		return s.config.Ready(ctx)
	}
	if err := validate(r.Sandbox); err != nil {
		return err
	}
	// What the chain cannot know is not taken from it.
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

func (s *Server) logged(r request, err error, took time.Duration) {
	log := s.config.Log.With("entrance", "cni", "command", r.Command, "pod", r.Sandbox.Pod(), "sandbox", r.Sandbox.ID, "netns", r.Sandbox.NetNS, "duration", took)
	switch {
	case err == nil:
		log.Debug("request served")
	case r.Command == cmdStatus: // asked for every few seconds, and the answer is in the node's condition
		log.Debug("not ready", "error", err)
	default:
		log.Error("request refused", "error", err)
	}
}
