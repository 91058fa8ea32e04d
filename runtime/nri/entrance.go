package nri

import (
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

// DefaultSocket is where runtimes listen for plugins.
const DefaultSocket = "/var/run/nri/nri.sock"

// DefaultName and DefaultIndex are how the runtime lists us; plugins are called in the order of their index.
const (
	DefaultName  = "istio-pod-network-controller"
	DefaultIndex = "90"
)

// silence is how long a socket that takes connections may leave us without any answer before Live fails.
const silence = 5 * time.Minute

// startLimit bounds the time from dialling to being configured: the runtime's own limit is 5 s unless configured.
const startLimit = 3 * api.DefaultPluginRegistrationTimeout

// Config is what an Entrance needs.
type Config struct {
	// Socket, Name and Index have defaults.
	Socket, Name, Index string
	Handler             Handler
	// PassNamespaces are let through without a look: the agent's own, and those that are excluded.
	PassNamespaces []string
	// IsHost reports whether a path leads to the host's own network namespace; nil means never.
	IsHost func(netns string) bool
	// HostNetwork reports whether the API server has the pod on the host's network; known is false where nobody could say in
	// time. It may be nil: nobody knows.
	HostNetwork func(ctx context.Context, s podnet.Sandbox) (hostNetwork, known bool)
	// Observe is told how long the runtime was held by a call; it may be nil.
	Observe func(call string, outcome Outcome, took time.Duration)
	// Required makes Check fail while there is no socket; without it such a runtime is taken to have no NRI.
	Required bool
	// FailOpen lets pods through whose rules could not be programmed.
	FailOpen bool
}

// Entrance keeps a connection to the runtime, for ever and again: a runtime that restarts has a new socket.
//
//   - A socket file that appears or is made anew is connected to within 200 ms; only attempts on the same file back off.
//   - Nobody who listens (no file, or a stale one) means that the runtime does not offer NRI.
//   - An attempt that the runtime leaves without an answer ends at startLimit.
type Entrance struct {
	config     Config
	startLimit time.Duration
	plugin     atomic.Pointer[plugin]
	connection atomic.Pointer[session] // the one by which the runtime calls us

	mu      sync.Mutex
	looked  bool      // for the socket, once
	offered bool      // somebody listened at the last look
	silent  time.Time // since when somebody listens and neither calls us nor says no; zero: that is not so
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
	return &Entrance{config: c, startLimit: startLimit}, nil
}

// Connected reports whether the runtime calls us at present.
func (e *Entrance) Connected() bool { return e.connection.Load() != nil }

// Offered reports whether the runtime offers NRI: whether somebody listened at its socket at the last look, if there was one.
func (e *Entrance) Offered() (offered, looked bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.offered, e.looked
}

// Check is nil when the entrance is up, or when there is none to be had and none is required.
func (e *Entrance) Check(context.Context) error {
	offered, looked := e.Offered()
	switch {
	case e.Connected() || looked && !offered && !e.config.Required:
		return nil
	case looked && !offered:
		return fmt.Errorf("required, and nobody listens at %s", e.config.Socket)
	}
	return fmt.Errorf("the runtime at %s does not call us", e.config.Socket)
}

// Live fails where only a new start may help: the runtime takes our connections and answers none for minutes, or a call is under
// way for twice its limit. A runtime that says no, or has no NRI, is no reason to restart.
func (e *Entrance) Live(context.Context) error {
	e.mu.Lock()
	silent := e.silent
	e.mu.Unlock()
	if !silent.IsZero() && time.Since(silent) > silence {
		return fmt.Errorf("the runtime at %s takes connections and has answered none since %s", e.config.Socket, silent.UTC().Format(time.RFC3339))
	}
	if p := e.plugin.Load(); p != nil {
		return p.live()
	}
	return nil
}

// Start connects, and connects again whenever the runtime is lost, until ctx ends. Calls that are under way then are answered
// first.
func (e *Entrance) Start(ctx context.Context) error {
	log := logr.FromContextOrDiscard(ctx).WithValues("entrance", "nri")
	if err := ctrdlog.SetFormat(ctrdlog.JSONFormat); err != nil { // of what ttrpc says by itself
		return err
	}
	p := newPlugin(e.config, log)
	e.plugin.Store(p)
	go p.work(ctx)
	pause := backOff{}
	for ctx.Err() == nil {
		file := identify(e.config.Socket)
		pause.of(file)
		began := time.Now()
		err := e.connect(ctx, p)
		if time.Since(began) > lastWait {
			pause = backOff{}
		}
		if e.saw(err) && ctx.Err() == nil {
			log.Info("runtime lost", "socket", e.config.Socket, "reason", fmt.Sprint(err), "wait", pause.wait.String())
		}
		pause.await(ctx, e.config.Socket, file)
	}
	return nil
}

// listened notes that the runtime has taken our connection.
func (e *Entrance) listened() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.offered, e.looked = true, true
	if e.silent.IsZero() {
		e.silent = time.Now()
	}
}

// answered notes that the runtime calls us.
func (e *Entrance) answered() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.silent = time.Time{}
}

// saw notes how an attempt to connect, or a connection, has ended, and reports whether anybody listens.
func (e *Entrance) saw(err error) (listens bool) {
	listens = !absent(err)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.offered, e.looked = listens, true
	if !listens || !unanswered(err) {
		e.silent = time.Time{}
	}
	return listens
}
