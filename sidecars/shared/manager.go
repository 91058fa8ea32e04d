// Package shared keeps the configuration of the proxy that all pods of the node share which have chosen a shared ProxyProfile.
//
//	manager.go    what others call
//	run.go        rounds of one profile
//	successor.go  which of the DaemonSet's pods the proxy is
//	configure.go  brings its configuration to what they ask for
//	apply.go      puts a configuration into force
//	trial.go      finds a configuration that the proxy accepts
//	publish.go    says how the pods are
//	members.go    which pods the proxy is to serve
//	round.go      what one round knows
//	group.go      what is remembered of a profile's pods and proxy
//	ask.go        asks the proxy for its version
//	plan.go       values: what to try next
//	pods.go       what is remembered of single pods
//	directory.go  what proxy and agent share on the node
//	state.go      configurations that the proxy may have
//	following.go  the pods that have chosen a profile
//	needs.go      what the manager needs of a node
package shared

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/internal/podnet"
)

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
	Config

	mu     sync.Mutex
	groups map[string]*group
	wake   chan struct{} // a group was added
}

// New returns a Manager that follows no pod.
func New(c Config) *Manager {
	return &Manager{Config: c, groups: map[string]*group{}, wake: make(chan struct{}, 1)}
}

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
	g := m.groups[profile]
	if g == nil {
		g = newGroup(&m.Config, profile)
		m.groups[profile] = g
		select {
		case m.wake <- struct{}{}:
		default:
		}
	}
	return g
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
	for _, e := range entries {
		_, err := os.Stat(filepath.Join(m.Root, e.Name(), stateName))
		if err == nil && len(validation.IsDNS1123Subdomain(e.Name())) == 0 {
			m.group(e.Name())
		}
	}
	return nil
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
