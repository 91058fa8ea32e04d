// Package sidecars runs a proxy beside each pod that chooses a ProxyProfile: in the pod's sandbox, and outside its spec.
//
//	worker.go      takes sandboxes from the queue, and waits for the ends of their processes
//	sweep.go       looks for what is left of sandboxes that nobody follows
//	reconcile.go   one look at one sandbox: observe, learn, decide, act, report
//	observe.go     reads: the pod's choice, containers, notes, how proxies have ended
//	learn.go       what follows from what was read, and from answers and ends; keeps secrets up to date
//	probes.go      asks the proxies
//	decide.go      what should run, and from which version of the profile
//	slot.go        whether the sandbox may try the present version
//	route.go       has the rules lead to the proxy that serves
//	act.go         does what was decided
//	launch.go      makes a proxy
//	hotrestart.go  how an Envoy takes over from another one
//	report.go      says how the proxy is
//	manager.go     what others call
//	finish.go      ends proxies with their application
//	registry.go    sandboxes that are followed, and the queue
//	figures.go     counts for metrics
//	observed.go    values: a sandbox as it was found, what was learned, what was decided
//	memory.go      what is remembered of it
//	needs.go       what the manager needs of a node and a cluster
package sidecars

import (
	"context"
	"os"
	"sync"
	"time"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/home"
	"istio-pod-network-controller/sidecars/probe"
	"istio-pod-network-controller/sidecars/rollout"
)

const (
	// workers is how many sandboxes are worked on at once.
	workers = 4
	// sweepInterval is the time between two looks at all containers and homes, for changes without an event.
	sweepInterval = 30 * time.Second
	// cleanInterval is the time between two looks at a sandbox that ends.
	cleanInterval = 2 * time.Second
)

// Manager keeps one proxy running in each sandbox whose pod has chosen a profile:
//
//   - The Programmer follows a sandbox with Follow once its rules are in force: no connection goes past a proxy that does not run yet. A pod that ran
//     already when it chose its first proxy (Choice.Later) is followed without rules.
//   - Each event, and each time that a Decision asks for, puts the sandbox into a queue. The end of a proxy's process is such an event.
//   - A worker reconciles it: it observes, learns what has changed, decides, has the rules lead to the serving proxy, acts, and reports.
//   - Proxies are asked outside of the workers. An answer that is news is such an event.
//   - The runtime is the only memory of what runs. What is remembered here (failures, answers) may be lost at any time.
//   - A sweep finds leftovers of sandboxes that nobody follows.
//   - When the agent ends, nothing is ended: proxies run on without it.
//   - Of two agents of the node only the holder of the lock of Homes.Root works. The other one remembers what it is told, and takes over once
//     the first one's workers have ended. Routes, reports and shared proxies are not the Manager's: both agents keep them.
type Manager struct {
	Config

	lanes    probe.Lanes
	followed *registry
	duty     duty
	counts   counts
}

// Config connects a Manager with its node and its cluster.
type Config struct {
	Runtime Runtime
	Images  Images
	Secrets home.Secrets
	Prober  Prober
	Cluster Cluster
	// ControlPlanes is for profiles with istio.
	ControlPlanes ControlPlanes
	Asker         Asker
	Reporter      Reporter
	Routes        Routes
	Homes         home.Homes
	Rollout       *rollout.Queue
	// Good has the versions of profiles that work, in a directory that survives a start of the node.
	Good *rollout.Good
	// Started gets the duration of each start: from when a sandbox without a proxy is followed until its first proxy is ready. It may be nil.
	Started func(profile string, took time.Duration)
}

// New returns a Manager that follows no sandbox.
func New(c Config) *Manager {
	return &Manager{Config: c, lanes: probe.NewLanes(), followed: newRegistry()}
}

// Follow has a sandbox's proxy looked after from now on. It returns at once. An older sandbox of the pod is no longer followed.
func (m *Manager) Follow(s podnet.Sandbox) {
	left(m, m.followed.drop(func(other podnet.Key) bool { return other.PodUID == s.UID && other != s.Key() }))
	m.followed.add(s)
}

// Keep is Follow, but a sandbox that is followed already is not looked at for it.
func (m *Manager) Keep(s podnet.Sandbox) {
	if now, followed := m.followed.find(s.Key()); !followed || now != s {
		m.Follow(s)
	}
}

// Unfollow forgets a pod that is gone. Its proxies end with its application, which runs on for a moment if the pod was deleted by force.
func (m *Manager) Unfollow(podUID string) {
	left(m, m.followed.drop(func(key podnet.Key) bool { return key.PodUID == podUID }))
	m.Reporter.Forget(podUID)
}

// dismiss no longer follows a sandbox whose pod stays. retract is for a pod that has no proxy any more: its ManagedProxy goes.
func dismiss(m *Manager, key podnet.Key, retract bool) {
	left(m, m.followed.drop(func(other podnet.Key) bool { return other == key }))
	if retract {
		m.Reporter.Retract(key.PodUID)
	}
}

// left has other sandboxes take the upgrade slots of sandboxes that are gone, or no longer followed.
func left(m *Manager, gone []podnet.Key) {
	for _, key := range gone {
		m.followed.enqueue(m.Rollout.Leave(key))
	}
}

// Follows reports whether a pod's proxy is looked after.
func (m *Manager) Follows(podUID string) bool {
	return m.followed.hasPod(podUID)
}

// Notify has all sandboxes of a profile, or all if name is empty, looked at.
func (m *Manager) Notify(profile string) {
	m.followed.enqueueProfile(profile)
}

// ContainerEnded has the proxies of a sandbox finish if its last application container has ended, and none will be started again. If ended is not
// Exited, the runtime's list decides. It is called while the runtime waits for the answer: it only reads from the runtime, and signals. The runtime ends
// the sandbox soon after, by SIGKILL. While another agent works, which is told of the end, too, it is only remembered.
func (m *Manager) ContainerEnded(ctx context.Context, s podnet.Sandbox, ended sidecar.Application) error {
	key := s.Key()
	if _, followed := m.followed.find(key); !followed || m.Homes.Of(key).Notes().Finished(time.Now()) {
		return nil
	}
	over, err := isOver(ctx, m.Runtime, m.Cluster, s, ended)
	if err != nil || !over {
		return err
	}
	m.duty.mu.RLock()
	defer m.duty.mu.RUnlock()
	if m.duty.lock == nil {
		m.followed.update(key, func(e *entry) { e.inbox.finishedAt = time.Now() })
		m.followed.queue.Add(key)
		return nil
	}
	return finish(ctx, m.Runtime, key, m.Homes.Of(key))
}

// Figures returns those of each profile that pods of this node have chosen.
func (m *Manager) Figures() map[string]Figures {
	out := map[string]Figures{}
	for name, pods := range m.followed.health() {
		of := m.counts.of(name)
		of.Paused, of.Pods = m.Rollout.Paused(name), pods
		out[name] = of
	}
	return out
}

// duty is whether this agent works: then it has the lock. Calls that tell proxies to finish hold mu meanwhile, as readers.
type duty struct {
	mu   sync.RWMutex
	lock *os.File
}

// hold notes the lock that this agent has, or with nil that it works no longer, once none of those calls goes on.
func (d *duty) hold(lock *os.File) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lock = lock
}
