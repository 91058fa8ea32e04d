package nri

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	ctrdlog "github.com/containerd/log"
	"github.com/containerd/nri/pkg/api"
	"github.com/go-logr/logr"

	"istio-pod-network-controller/internal/podnet"
)

// DefaultSocket is where runtimes listen for NRI plugins.
const DefaultSocket = "/var/run/nri/nri.sock"

// DefaultName and DefaultIndex are the plugin's name and index in the runtime. Plugins are called in the order of their index.
const (
	DefaultName  = "istio-pod-network-controller"
	DefaultIndex = "90"
)

// maxSilence is how long the runtime may accept connections without calling the plugin before Live fails.
const maxSilence = 5 * time.Minute

// startLimit bounds the time from dialling to being configured. The runtime's own limit is 5 s unless configured.
const startLimit = 3 * api.DefaultPluginRegistrationTimeout

// Config is what a Hook needs.
type Config struct {
	// Socket, Name and Index have defaults.
	Socket, Name, Index string
	Handler             Handler
	// PassNamespaces are namespaces whose pods always pass: the agent's own and excluded ones.
	PassNamespaces []string
	// StaticPods reports whether the Handler knows static pods by now. While it does not, they pass; nil means always.
	StaticPods func() bool
	// IsHost reports whether a path leads to the host's own network namespace; nil means never.
	IsHost func(netns string) bool
	// HostNetwork reports whether the pod is on the host's network according to the API server. known is false if that could not be
	// found out in time. nil means never known.
	HostNetwork func(ctx context.Context, s podnet.Sandbox) (hostNetwork, known bool)
	// Observe is called with the duration of each call of the runtime; it may be nil.
	Observe func(call string, outcome Outcome, took time.Duration)
	// Creating is called before a container of a sandbox with rules is made; nil if nobody wants to know. The runtime waits for it.
	Creating func(ctx context.Context, s podnet.Sandbox, container string) error
	// Stopped is called when a container has ended, and before the runtime ends the sandbox. The runtime waits for it, so it may only
	// read from the runtime. If it is nil, the plugin does not subscribe to the end of containers.
	Stopped func(ctx context.Context, s podnet.Sandbox, c Container) error
	// Required makes Check fail while nobody listens at the socket. Otherwise such a runtime counts as one without NRI.
	Required bool
	// FailOpen lets pods start whose rules could not be applied.
	FailOpen bool
}

// Hook keeps a connection to the runtime and connects again whenever it ends.
//
//   - A socket file that appears or is replaced is tried within 200 ms. Only attempts on the same file back off.
//   - If nobody listens (no file, or one left behind), the runtime does not offer NRI.
//   - An attempt that the runtime does not answer ends at startLimit.
type Hook struct {
	config     Config
	startLimit time.Duration
	plugin     atomic.Pointer[plugin]
	connection atomic.Pointer[session] // the session that the runtime calls

	mu          sync.Mutex
	checked     bool      // a connection was tried
	offered     bool      // somebody listened at the last attempt
	silentSince time.Time // since when the runtime listens and neither calls nor refuses; zero if it does not
}

// New checks the configuration and fills in defaults.
func New(c Config) (*Hook, error) {
	c.Socket, c.Name, c.Index = cmp.Or(c.Socket, DefaultSocket), cmp.Or(c.Name, DefaultName), cmp.Or(c.Index, DefaultIndex)
	switch {
	case c.Handler == nil:
		return nil, errors.New("make NRI hook: no handler")
	case strings.ContainsAny(c.Name, "/ \t\n"):
		return nil, fmt.Errorf("make NRI hook: name %q: want no blanks and slashes", c.Name)
	case len(c.Index) != 2 || strings.Trim(c.Index, "0123456789") != "":
		return nil, fmt.Errorf("make NRI hook: index %q: want two digits", c.Index)
	}
	return &Hook{config: c, startLimit: startLimit}, nil
}

// Connected reports whether the plugin is registered with the runtime.
func (e *Hook) Connected() bool { return e.connection.Load() != nil }

// Offered reports whether somebody listened at the socket at the last attempt to connect, and whether there was an attempt.
func (e *Hook) Offered() (offered, checked bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.offered, e.checked
}

// Check returns nil if the runtime calls the plugin, or if it offers no NRI and NRI is not required.
func (e *Hook) Check(context.Context) error {
	offered, checked := e.Offered()
	switch {
	case e.Connected() || checked && !offered && !e.config.Required:
		return nil
	case checked && !offered:
		return fmt.Errorf("required, and nobody listens at %s", e.config.Socket)
	}
	return fmt.Errorf("the runtime at %s does not call us", e.config.Socket)
}

// Live returns an error when only a restart may help: the runtime has accepted connections and answered none for minutes, or a handler has
// run for twice the runtime's limit. A runtime that refuses the plugin or has no NRI is no reason to restart.
func (e *Hook) Live(context.Context) error {
	e.mu.Lock()
	since := e.silentSince
	e.mu.Unlock()
	if !since.IsZero() && time.Since(since) > maxSilence {
		return fmt.Errorf("the runtime at %s takes connections and has answered none since %s", e.config.Socket, since.UTC().Format(time.RFC3339))
	}
	if p := e.plugin.Load(); p != nil {
		return p.calls.live()
	}
	return nil
}

// Start connects, and connects again whenever the connection ends, until ctx ends. Calls under way are answered first.
func (e *Hook) Start(ctx context.Context) error {
	log := logr.FromContextOrDiscard(ctx).WithValues("hook", "nri")
	if err := ctrdlog.SetFormat(ctrdlog.JSONFormat); err != nil { // format of ttrpc's own log
		return err
	}
	p := newPlugin(e.config, log)
	e.plugin.Store(p)
	go p.work(ctx)
	retry := backOff{}
	for ctx.Err() == nil {
		file := socketFileAt(e.config.Socket)
		retry.next(file)
		began := time.Now()
		err := e.connect(ctx, p)
		if time.Since(began) > lastWait {
			retry = backOff{}
		}
		if e.noteEnded(err) && ctx.Err() == nil {
			log.Info("runtime lost", "socket", e.config.Socket, "reason", fmt.Sprint(err), "wait", retry.wait.String())
		}
		retry.await(ctx, e.config.Socket, file)
	}
	return nil
}

// noteAccepted notes that the runtime has accepted a connection.
func (e *Hook) noteAccepted() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.offered, e.checked = true, true
	if e.silentSince.IsZero() {
		e.silentSince = time.Now()
	}
}

// noteCalled notes that the runtime calls the plugin.
func (e *Hook) noteCalled() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.silentSince = time.Time{}
}

// noteEnded notes how an attempt to connect, or a connection, has ended. It reports whether somebody listens.
func (e *Hook) noteEnded(err error) (listens bool) {
	listens = !absent(err)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.offered, e.checked = listens, true
	if !listens || !unanswered(err) {
		e.silentSince = time.Time{}
	}
	return listens
}
