package nri

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/go-logr/logr"
)

// DefaultSocket is where runtimes listen for plugins.
const DefaultSocket = "/var/run/nri/nri.sock"

// DefaultName and DefaultIndex are how the runtime lists us; plugins are called in the order of their index.
const (
	DefaultName  = "istio-pod-network-controller"
	DefaultIndex = "90"
)

// share is the part of the runtime's time limit that we allow ourselves: past the limit the runtime drops the plugin and the
// pod goes on without it, so our own error has to come first.
const share = 0.7

// Bounds of the wait between two connections.
const (
	firstWait = 100 * time.Millisecond
	lastWait  = 10 * time.Second
)

// At the agent's end a pause of the runtime is waited for before the connection is closed, but not longer than some calls take.
const (
	pause     = 20 * time.Millisecond
	lastCalls = 3 * time.Second
)

// queueLength is how many sandboxes of one Synchronize can wait; a node has a few hundred.
const queueLength = 1024

// Config is what an Entrance needs.
type Config struct {
	// Socket, Name and Index have defaults.
	Socket, Name, Index string
	Handler             Handler
	// PassNamespaces are let through without a look: the agent's own, and those that are excluded.
	PassNamespaces []string
	// IsHost tells whether a path leads to the host's own network namespace; nil means never.
	IsHost func(netns string) bool
	// Observe is told how long the runtime was held by a call; it may be nil.
	Observe func(call string, outcome Outcome, took time.Duration)
	// Required makes Check fail while there is no socket; without it such a runtime is taken to have no NRI.
	Required bool
	// FailOpen lets pods through whose rules could not be programmed.
	FailOpen bool
}

// Entrance keeps a connection to the runtime, for ever and again: a runtime that restarts has a new socket.
type Entrance struct {
	config    Config
	connected atomic.Bool
}

// New checks the configuration and fills its defaults in.
func New(c Config) (*Entrance, error) {
	for _, d := range []struct {
		value    *string
		standard string
	}{{&c.Socket, DefaultSocket}, {&c.Name, DefaultName}, {&c.Index, DefaultIndex}} {
		if *d.value == "" {
			*d.value = d.standard
		}
	}
	switch {
	case c.Handler == nil:
		return nil, errors.New("make NRI entrance: no handler")
	case strings.ContainsAny(c.Name, "/ \t\n"):
		return nil, fmt.Errorf("make NRI entrance: name %q: want no blanks and slashes", c.Name)
	case len(c.Index) != 2 || strings.Trim(c.Index, "0123456789") != "":
		return nil, fmt.Errorf("make NRI entrance: index %q: want two digits", c.Index)
	}
	return &Entrance{config: c}, nil
}

// Connected tells whether the runtime calls us at present.
func (e *Entrance) Connected() bool { return e.connected.Load() }

// Check is nil when the entrance is up, or when there is none to be had and none is required.
func (e *Entrance) Check(context.Context) error {
	if e.Connected() {
		return nil
	}
	if _, err := os.Stat(e.config.Socket); errors.Is(err, os.ErrNotExist) && !e.config.Required {
		return nil
	}
	return fmt.Errorf("the runtime at %s does not call us", e.config.Socket)
}

// Start connects, and connects again whenever the runtime is lost, until ctx ends. It is a manager.Runnable.
func (e *Entrance) Start(ctx context.Context) error {
	log := logr.FromContextOrDiscard(ctx).WithValues("entrance", "nri")
	p := newPlugin(e.config, log)
	p.synchronized = func() { e.connected.Store(true) }
	go p.work(ctx)
	for wait := firstWait; ctx.Err() == nil; wait = min(2*wait, lastWait) {
		since := time.Now()
		err := e.connect(ctx, p)
		if time.Since(since) > lastWait {
			wait = firstWait
		}
		if _, errStat := os.Stat(e.config.Socket); errStat == nil && ctx.Err() == nil {
			log.Info("runtime lost", "socket", e.config.Socket, "reason", fmt.Sprint(err), "wait", wait.String())
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
	return nil
}

// connect serves one connection until it ends.
func (e *Entrance) connect(ctx context.Context, p *plugin) error {
	if _, err := os.Stat(e.config.Socket); err != nil {
		return err
	}
	s, err := stub.New(p,
		stub.WithPluginName(e.config.Name), stub.WithPluginIdx(e.config.Index), stub.WithSocketPath(e.config.Socket),
		// Without it older stubs end the process when the connection does (containerd/nri#173).
		stub.WithOnClose(func() { e.connected.Store(false) }),
		// Asks runtimes that know it (NRI 0.12.4) to refuse pods when we are too slow or die; others ignore it.
		stub.WithFailurePolicy(&api.FailurePolicy{FailRequest: !e.config.FailOpen, KeepConnected: true}),
	)
	if err != nil {
		return fmt.Errorf("make NRI stub: %w", err)
	}
	defer e.connected.Store(false)
	p.setLimit(s.RequestTimeout) // it is known when the runtime has configured us
	if err := s.Start(ctx); err != nil {
		return fmt.Errorf("register with the runtime: %w", err)
	}
	stop := context.AfterFunc(ctx, func() {
		p.awaitQuiet()
		s.Stop()
	})
	defer stop()
	s.Wait()
	return errors.New("the connection has ended")
}
