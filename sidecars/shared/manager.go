// Package shared keeps the configuration of the proxy that all pods of the node share which have chosen a shared ProxyProfile.
package shared

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars"
)

// Proxies reaches the containers that the DaemonSets of shared proxies run on the node.
type Proxies interface {
	// Find returns the running containers of a profile's proxy, that of the oldest pod first, or sidecar.ErrGone. There are several while one
	// pod replaces another.
	Find(ctx context.Context, profile string) ([]sidecar.Container, error)
	// Check runs a command in a container. ok reports whether it ended with code 0, and output is what it printed, bounded.
	Check(ctx context.Context, id string, command []string) (output string, ok bool, err error)
	// Signal sends a signal to the first process of a container.
	Signal(ctx context.Context, id string, signal unix.Signal) error
	// Wait returns once a container has ended, or ctx has.
	Wait(ctx context.Context, id string) error
}

// Sandboxes looks at the sandboxes of pods.
type Sandboxes interface {
	// Ready reports whether a sandbox runs.
	Ready(ctx context.Context, s podnet.Sandbox) (bool, error)
	// Name returns the name of a sandbox's network namespace in /var/run/netns, or podnet.ErrGone if there is none any more.
	Name(ctx context.Context, s podnet.Sandbox) (netns string, err error)
	// Free returns sidecars.ErrPortTaken if a process in a sandbox has one of the ports, bound is enough. It takes a second at most.
	Free(ctx context.Context, s podnet.Sandbox, ports []uint16) error
}

// Manager has the node's shared proxies serve the pods that have chosen them. Of each profile, one goroutine works in rounds:
//
//   - It finds the proxy's container, and asks it which version of its configuration is in force. A newer pod of the DaemonSet becomes the
//     proxy once it answers that version, too: see successor.
//   - It asks of each pod whether it is to be served: it has chosen the profile, its sandbox runs, and its network namespace has a name.
//   - A pod that is not served yet has to leave the proxy's ports free.
//   - It renders the profile's files for all of them, and has the proxy check them. If they are refused, each new pod is checked alone; who is
//     refused stays out, and the others go on.
//   - It puts the files into force, and waits until the proxy answers their version. If it does not, the old files come back.
//   - What the proxy has answered is written down, for the next agent. An agent that starts, and finds the proxy with that version, changes
//     nothing.
//
// A proxy that does not run serves nobody: the pods' rules lead to ports where nobody listens. The agent then takes pods that are gone out of
// the files that it starts with, so that they do not keep it from starting.
type Manager struct {
	Cluster   sidecars.Cluster
	Proxies   Proxies
	Sandboxes Sandboxes
	Reporter  sidecars.Reporter
	// Root is a directory in memory that the agent and the kubelet see at the same path. Node is the node's name.
	Root, Node string
	// Hold reports whether a pod's rules still lead to a profile's proxy: it is kept there, even if it has opted out. It may be nil.
	Hold func(profile string, s podnet.Sandbox) bool
	// Changed gets the duration of each change of a pod, until its profile's proxy has confirmed it. It may be nil.
	Changed func(profile string, took time.Duration)

	mu     sync.Mutex
	groups map[string]*group
	wake   chan struct{} // a group was added
}

// sweepInterval is the longest time between two rounds of a profile.
const sweepInterval = 30 * time.Second

// Follow has a sandbox served by a profile's proxy from now on, and its pod read anew. It returns at once.
func (m *Manager) Follow(s podnet.Sandbox, profile string) { m.follow(s, profile, true) }

// Keep is Follow, but the pod of a sandbox that is followed already is not read anew.
func (m *Manager) Keep(s podnet.Sandbox, profile string) { m.follow(s, profile, false) }

func (m *Manager) follow(s podnet.Sandbox, profile string, look bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, g := range m.groups {
		if name != profile {
			g.leave(s.UID)
		}
	}
	m.group(profile).follow(s, look)
}

// Unfollow forgets a pod that is gone. The proxy serves it until its sandbox has ended.
func (m *Manager) Unfollow(podUID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, g := range m.groups {
		g.leave(podUID)
	}
	m.Reporter.Forget(podUID)
}

// Follows reports whether a pod is followed for any profile.
func (m *Manager) Follows(podUID string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, g := range m.groups {
		if g.chosen.has(podUID) {
			return true
		}
	}
	return false
}

// Notify has a round of a profile, or of all if name is empty.
func (m *Manager) Notify(profile string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, g := range m.groups {
		if profile == "" || profile == name {
			g.poke()
		}
	}
}

// Serves reports whether a profile's proxy serves a sandbox; known is false before this agent has found out.
func (m *Manager) Serves(profile string, s podnet.Sandbox) (serves, known bool) {
	m.mu.Lock()
	g := m.groups[profile]
	m.mu.Unlock()
	if g == nil {
		return false, false
	}
	return g.serves(s.Key())
}

// group returns the group of a profile, which it makes if there is none. m.mu is held.
func (m *Manager) group(profile string) *group {
	m.init()
	g := m.groups[profile]
	if g == nil {
		g = newGroup(m, profile)
		m.groups[profile] = g
		select {
		case m.wake <- struct{}{}:
		default:
		}
	}
	return g
}

// init is called with m.mu held.
func (m *Manager) init() {
	if m.groups == nil {
		m.groups, m.wake = map[string]*group{}, make(chan struct{}, 1)
	}
}

// Start works until ctx ends. It is a manager.Runnable. It changes nothing when it ends: proxies run on.
func (m *Manager) Start(ctx context.Context) error {
	if err := m.find(); err != nil {
		return err
	}
	var working sync.WaitGroup
	defer working.Wait()
	for {
		m.mu.Lock()
		for _, g := range m.groups {
			if !g.started {
				g.started = true
				logger := log.FromContext(ctx).WithValues("profile", g.name)
				working.Go(func() { g.run(log.IntoContext(ctx, logger)) })
			}
		}
		m.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil
		case <-m.wake:
		}
	}
}

// find makes a group for each profile that an agent has worked on before: its pods may have left meanwhile.
func (m *Manager) find() error {
	entries, err := os.ReadDir(m.Root)
	if err != nil {
		return fmt.Errorf("look for shared proxies: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.init()
	for _, e := range entries {
		_, err := os.Stat(filepath.Join(m.Root, e.Name(), stateName))
		if err == nil && len(validation.IsDNS1123Subdomain(e.Name())) == 0 {
			m.group(e.Name())
		}
	}
	return nil
}

// Result is what became of a configuration that the agent has tried.
type Result string

// The results. A configuration from which pods were left out counts as refused, and once more for what became of the rest.
const (
	Applied     Result = "applied"     // the proxy answers its version
	Refused     Result = "refused"     // the templates or the proxy's check did not pass it
	Unconfirmed Result = "unconfirmed" // the proxy did not answer its version in time
	Failed      Result = "failed"      // it could not be written, or the runtime did not pass the check or the signal on
)

// Figures are how a profile's proxy and its pods are on this node.
type Figures struct {
	// Served are the pods that the proxy serves. Refused pods need a change of theirs or of the profile first. Waiting pods need none.
	Served, Refused, Waiting int
	// Running reports whether the proxy's container runs. Newest reports whether the proxy has confirmed the profile's present version, without
	// pods that have left.
	Running, Newest bool
	// Reloads counts configurations by what became of them, with zeros.
	Reloads map[Result]uint64
}

// Figures returns those of each profile that has pods on this node, or whose proxy runs there.
func (m *Manager) Figures() map[string]Figures {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]Figures{}
	for name, g := range m.groups {
		if f := g.figuresNow(); f.Running || f.Served+f.Refused+f.Waiting > 0 {
			out[name] = f
		}
	}
	return out
}
