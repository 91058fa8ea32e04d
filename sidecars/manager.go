// Package sidecars runs a proxy beside each pod that chooses a ProxyProfile: in the pod's sandbox, and outside its spec.
package sidecars

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/internal/jitter"
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
	// lastErrorPause is the longest pause after an error of the runtime or the API server, which restart within seconds.
	lastErrorPause = 2 * time.Second
	// cleanInterval is the time between two looks at a sandbox that ends.
	cleanInterval = 2 * time.Second
)

// Manager keeps one proxy running in each sandbox whose pod has chosen a profile:
//
//   - The Programmer follows a sandbox with Follow once its rules are in force: no connection goes past a proxy that does not run yet.
//   - Each event, and each time that a Decision asks for, puts the sandbox into a queue. The end of a proxy's process is such an event.
//   - A worker takes a step: it reads the sandbox (view), learns what has changed, decides (Decide), acts (stepping), and reports.
//   - Proxies are asked outside of the workers (questions). An answer that is news is such an event.
//   - The runtime is the only memory of what runs. What is remembered here (failures, answers) may be lost at any time.
//   - A sweep finds leftovers of sandboxes that nobody follows.
//   - When the agent ends, nothing is ended: proxies run on without it.
//   - Of two agents of the node only the holder of the lock of Homes.Root works. The other one remembers what it is told, and takes over once
//     the first one's workers have ended.
type Manager struct {
	Runtime Runtime
	Images  Images
	Secrets home.Secrets
	Prober  Prober
	Cluster Cluster
	// ControlPlanes is for profiles with istio.
	ControlPlanes ControlPlanes
	Asker         Asker
	Reporter      Reporter
	Homes         home.Homes
	Rollout       *rollout.Queue
	// Started gets the duration of each start: from when a sandbox without a proxy is followed until its first proxy is ready. It may be nil.
	Started func(profile string, took time.Duration)

	once  sync.Once
	lanes probe.Lanes
	queue workqueue.TypedRateLimitingInterface[podnet.Key]
	mu    sync.Mutex
	known map[podnet.Key]*entry
	good  *rollout.Good
	// lock is nil while this agent does not work. finishing are the calls that tell proxies to finish.
	lock      *os.File
	finishing sync.WaitGroup
	// counted has what became of proxies, by profile.
	counted map[string]Figures
}

// Follow has a sandbox's proxy looked after from now on. It returns at once. An older sandbox of the pod is no longer followed.
func (m *Manager) Follow(s podnet.Sandbox) {
	m.init()
	key := s.Key()
	m.mu.Lock()
	for other := range m.known {
		if other.PodUID == key.PodUID && other != key {
			m.unfollow(other)
		}
	}
	if f, ok := m.known[key]; ok {
		f.sandbox = s
	} else {
		m.known[key] = newEntry(s)
	}
	m.mu.Unlock()
	m.queue.Add(key)
}

// Keep is Follow, but a sandbox that is followed already is not looked at for it.
func (m *Manager) Keep(s podnet.Sandbox) {
	m.init()
	m.mu.Lock()
	f := m.known[s.Key()]
	kept := f != nil && f.sandbox == s
	m.mu.Unlock()
	if !kept {
		m.Follow(s)
	}
}

// Unfollow forgets a pod that is gone. Its proxies end with its application, which runs on for a moment if the pod was deleted by force.
func (m *Manager) Unfollow(podUID string) {
	m.init()
	m.mu.Lock()
	defer m.mu.Unlock()
	for key := range m.known {
		if key.PodUID == podUID {
			m.unfollow(key)
		}
	}
	m.Reporter.Forget(podUID)
}

// unfollow no longer follows a sandbox. Its leftovers are removed once its containers have ended. m.mu is held.
func (m *Manager) unfollow(key podnet.Key) {
	delete(m.known, key)
	m.enqueue(m.Rollout.Leave(key))
	m.queue.Add(key)
}

// dismiss no longer follows a sandbox whose pod stays. retract is for a pod that has no proxy any more: its ManagedProxy goes.
func (m *Manager) dismiss(key podnet.Key, retract bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unfollow(key)
	if retract {
		m.Reporter.Retract(key.PodUID)
	}
}

// Follows reports whether a pod's proxy is looked after.
func (m *Manager) Follows(podUID string) bool {
	m.init()
	m.mu.Lock()
	defer m.mu.Unlock()
	for key := range m.known {
		if key.PodUID == podUID {
			return true
		}
	}
	return false
}

func (m *Manager) follows(key podnet.Key) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.known[key] != nil
}

// Notify has all sandboxes of a profile, or all if name is empty, looked at.
func (m *Manager) Notify(profile string) {
	m.init()
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, f := range m.known {
		if profile == "" || f.profile == profile {
			m.queue.Add(key)
		}
	}
}

// Remembered returns the profiles of which this node knows a version that works, deleted ones among them.
func (m *Manager) Remembered() []string {
	m.init()
	return m.good.Profiles()
}

// ForgetProfile forgets which version of a profile works: the profile is gone.
func (m *Manager) ForgetProfile(name string) error {
	m.init()
	return m.good.Forget(name)
}

// ContainerEnded has the proxies of a sandbox finish if its last application container has ended, and none will be started again. A container that
// is not Exited may have ended: the runtime's list says so. It is called while the runtime waits for the answer: it only reads from the runtime, and signals. The runtime ends the sandbox soon after, by
// SIGKILL. While another agent works, which is told of the end, too, it is only remembered.
func (m *Manager) ContainerEnded(ctx context.Context, s podnet.Sandbox, ended sidecar.Application) error {
	m.init()
	key := s.Key()
	if !m.follows(key) || m.Homes.Of(key).Notes().Finished(time.Now()) {
		return nil
	}
	over, err := isOver(ctx, m.Runtime, m.Cluster, s, ended)
	if err != nil || !over || !m.mayFinish(key) {
		return err
	}
	defer m.finishing.Done()
	return finish(ctx, m.Runtime, key, m.Homes.Of(key))
}

// mayFinish reports whether this agent works: then it does until finishing.Done is called. Otherwise it remembers that the sandbox's application has
// ended.
func (m *Manager) mayFinish(key podnet.Key) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lock != nil {
		m.finishing.Add(1)
		return true
	}
	if f := m.known[key]; f != nil {
		f.inbox.finishedAt = time.Now()
	}
	return false
}

func (m *Manager) init() {
	m.once.Do(func() {
		m.lanes = probe.NewLanes()
		m.good = &rollout.Good{Dir: filepath.Join(m.Homes.Root, home.Good)}
		m.known, m.counted = map[podnet.Key]*entry{}, map[string]Figures{}
		bounds := workqueue.NewTypedItemExponentialFailureRateLimiter[podnet.Key](firstPause, lastErrorPause)
		m.queue = workqueue.NewTypedRateLimitingQueue(jitter.Limiter[podnet.Key]{Bounds: bounds})
	})
}

// Start works until ctx ends, once no other agent of the node does. It is a manager.Runnable.
func (m *Manager) Start(ctx context.Context) error {
	m.init()
	lock := home.AwaitLock(ctx, m.Homes.Root)
	if lock == nil {
		m.queue.ShutDown()
		return nil
	}
	defer home.Unlock(lock)
	m.hold(lock)
	m.work(ctx)
	m.hold(nil)
	m.finishing.Wait()
	log.FromContext(ctx).Info("the node's proxies run on without this agent")
	return nil
}

// hold notes the lock that this agent has, or with nil that it works no longer.
func (m *Manager) hold(lock *os.File) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lock = lock
}

// work returns when ctx has ended and all workers have.
func (m *Manager) work(ctx context.Context) {
	var working sync.WaitGroup
	for range workers {
		working.Go(func() {
			for m.next(ctx) {
			}
		})
	}
	wait.NonSlidingUntilWithContext(ctx, m.sweep, sweepInterval)
	m.queue.ShutDown()
	working.Wait()
}

// next works on one sandbox, and reports whether there may be more.
func (m *Manager) next(ctx context.Context) bool {
	key, ended := m.queue.Get()
	if ended {
		return false
	}
	defer m.queue.Done(key)
	if ctx.Err() != nil {
		return true
	}
	e, sandbox, in := m.take(key)
	logger := log.FromContext(ctx).WithValues("pod", sandbox.Pod(), "podUID", key.PodUID, "sandbox", key.Sandbox)
	var again time.Duration
	var err error
	if e == nil {
		again = clean(log.IntoContext(ctx, logger), m, key)
	} else {
		var mem memory
		mem, again, err = reconcile(log.IntoContext(ctx, logger), m, e, sandbox, in)
		e.memory = watch(ctx, m, key, mem)
	}
	if err != nil && ctx.Err() == nil {
		logger.Error(err, "proxy not looked after")
		m.queue.AddRateLimited(key)
		return true
	}
	m.queue.Forget(key)
	if again > 0 {
		m.queue.AddAfter(key, again)
	}
	return true
}

// take returns what is followed by a key, nil if nothing is, and what has come since the last reconcile. chose takes that away.
func (m *Manager) take(key podnet.Key) (*entry, podnet.Sandbox, inbox) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.known[key]
	if e == nil {
		return nil, podnet.Sandbox{}, inbox{}
	}
	in := e.inbox
	in.exits, in.replies = maps.Clone(in.exits), slices.Clone(in.replies)
	e.inbox.finishedAt = time.Time{}
	return e, e.sandbox, in
}

// chose notes a pod's choice once the sandbox was observed, so that what had come until then is heard.
func (m *Manager) chose(e *entry, o observed, heard inbox) {
	m.mu.Lock()
	moved := e.profile != o.choice.Name
	e.profile = o.choice.Name
	e.inbox.replies = e.inbox.replies[len(heard.replies):]
	maps.DeleteFunc(e.inbox.exits, func(id string, _ processExit) bool { _, is := heard.exits[id]; return is })
	m.mu.Unlock()
	if moved { // its slot is one of the other profile
		m.enqueue(m.Rollout.Leave(o.key))
	}
}

// replied notes a reply. The sandbox is looked at for it if it is news.
func (m *Manager) replied(key podnet.Key, e *entry, r probe.Reply, before probe.Results) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e.inbox.replies = append(e.inbox.replies, r)
	if m.known[key] == e && (r.Err != nil || !before.IsSteady()) {
		m.queue.Add(key)
	}
}

// exited notes the end of a proxy's process.
func (m *Manager) exited(key podnet.Key, id string, exit processExit) {
	m.mu.Lock()
	if e := m.known[key]; e != nil {
		if e.inbox.exits == nil {
			e.inbox.exits = map[string]processExit{}
		}
		e.inbox.exits[id] = exit
	}
	m.mu.Unlock()
	m.queue.Add(key)
}

func (m *Manager) enqueue(keys []podnet.Key) {
	for _, key := range keys {
		m.queue.Add(key)
	}
}

// Figures returns those of each profile that pods of this node have chosen.
func (m *Manager) Figures() map[string]Figures {
	m.init()
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]Figures{}
	for _, f := range m.known {
		if f.profile == "" || f.health == "" {
			continue
		}
		of, known := out[f.profile]
		if !known {
			of = m.counted[f.profile]
			of.Paused, of.Pods = m.Rollout.Paused(f.profile), map[Health]int{HealthReady: 0, HealthStarting: 0, HealthSilent: 0, HealthFailed: 0, HealthRefused: 0, HealthEnded: 0}
		}
		of.Pods[f.health]++
		out[f.profile] = of
	}
	return out
}
