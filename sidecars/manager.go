package sidecars

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/internal/jitter"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
)

const (
	// workers is how many sandboxes are worked on at once.
	workers = 4
	// stepTimeout bounds one look at a sandbox with what it leads to, a pull of an image excepted.
	stepTimeout = 30 * time.Second
	// sweepInterval is the time between two looks at all containers and homes, for what no event has told.
	sweepInterval = 30 * time.Second
	// lastErrorPause is the longest pause after an error of the runtime or the API server, which restart within seconds.
	lastErrorPause = 2 * time.Second
	// lookFor is how long a sandbox that does not run is looked at every startPoll: the runtime may be starting it. Later it has ended.
	lookFor = 10 * time.Second
	// cleanInterval is the time between two looks at a sandbox that ends.
	cleanInterval = 2 * time.Second
)

// Runtime makes, ends and lists the containers of proxies.
type Runtime interface {
	// List returns the containers of a pod's proxies, or of all if podUID is empty.
	List(ctx context.Context, podUID string) ([]sidecar.Container, error)
	Create(ctx context.Context, spec sidecar.Spec) (id string, err error)
	Signal(ctx context.Context, id string, signal unix.Signal) error
	Stop(ctx context.Context, id string, wait time.Duration) error
	Remove(ctx context.Context, id string) error
	End(ctx context.Context, id string) (sidecar.End, error)
	// Wait returns once a container has ended, or ctx has.
	Wait(ctx context.Context, id string) error
	// Ready reports whether a sandbox runs.
	Ready(ctx context.Context, sandbox string) (bool, error)
}

// Logs bounds the logs of proxies.
type Logs interface {
	// TidyLogs removes logs of proxies that ended long ago. all are those that the runtime lists.
	TidyLogs(all []sidecar.Container) error
}

// Images brings the image of a proxy to the node.
type Images interface {
	// Ensure pulls an image unless the node has it.
	Ensure(ctx context.Context, p *Profile) error
}

// Cluster reads what the API server has.
type Cluster interface {
	// Pod returns the pod of a sandbox with all its fields, or podnet.ErrNoPod.
	Pod(ctx context.Context, s podnet.Sandbox) (*corev1.Pod, error)
	// Choice returns the profile that a pod has chosen. Refusal says why there is none although it has chosen one.
	Choice(ctx context.Context, s podnet.Sandbox) (c Choice, err error)
}

// Choice is what a pod has chosen: nothing, a profile that can be used, or one that cannot.
type Choice struct {
	Name string
	// Generation is that of the profile named, also if it cannot be used; 0 if there is none.
	Generation int64
	Profile    *Profile
	// Refusal says why Profile is nil although Name is not empty, and what to do.
	Refusal string
	// OptedOut reports whether the pod itself says that it has no proxy. Otherwise one that runs stays.
	OptedOut bool
	// Leaves reports whether the pod has chosen a shared proxy, which is not in its sandbox. Until that is ready, Name and Profile are those
	// of the proxy in the sandbox, to which the rules lead. Then they are empty, and the proxy in the sandbox finishes its connections,
	// within Drain.
	Leaves bool
	Drain  time.Duration
	// Held is the profile that the pod comes from, or "": the rules still lead to that profile's proxy in the sandbox, on other ports.
	Held string
	// Ending reports whether the pod is being deleted, or has finished; Finished whether its containers have ended for good.
	Ending, Finished bool
}

// Asker asks proxies whether they are ready.
type Asker interface {
	// Ask returns nil if the proxy of an epoch is ready, and ErrPortTaken, whether there is a proxy or not, if another process has its ports.
	Ask(ctx context.Context, s podnet.Sandbox, p *Profile, epoch uint32) error
	// Serves returns nil if an epoch's Envoy has taken over, as it says on a socket of its own.
	Serves(ctx context.Context, s podnet.Sandbox, epoch uint32) error
	// Listens returns ErrNobodyListens if connections to the profile's outbound port are refused.
	Listens(ctx context.Context, s podnet.Sandbox, p *Profile) error
}

// ErrPortTaken means that a process of the pod that is not the proxy's listens on one of the proxy's ports.
var ErrPortTaken = errors.New("the proxy's port is taken")

// ErrNobodyListens means that no proxy takes connections.
var ErrNobodyListens = errors.New("nobody listens")

// Reporter shows the proxies in the cluster.
type Reporter interface {
	Report(s podnet.Sandbox, status Status)
	// Forget is for a pod that is gone: what shows its proxy goes with it. Retract is for one that has no proxy any more.
	Forget(podUID string)
	Retract(podUID string)
}

// Summaries shows how far profiles have reached the node's proxies.
type Summaries interface {
	Summarize(profile string, s Summary)
}

// Manager keeps one proxy running in each sandbox whose pod has chosen a profile:
//
//   - The Programmer follows a sandbox with Follow once its rules are in force, so no connection goes past a proxy that does not run yet.
//   - Each event, and each time that a Decision asks for, puts the sandbox into a queue. A worker lists its containers, asks the proxies,
//     decides, and acts.
//   - The end of a proxy's process is such an event.
//   - The runtime is the only memory of what runs. What is remembered here (failures, answers) may be lost at any time.
//   - When the agent ends, nothing is ended: proxies run on without it.
type Manager struct {
	Runtime Runtime
	Logs    Logs
	Images  Images
	Secrets Secrets
	Prober  Prober
	// Applications may be nil: then ContainerEnded must not be called.
	Applications Applications
	Cluster      Cluster
	Asker        Asker
	Reporter     Reporter
	Homes        Homes
	Rollout      *Rollouts
	// Summaries is told of each change.
	Summaries Summaries

	once  sync.Once
	queue workqueue.TypedRateLimitingInterface[Key]
	mu    sync.Mutex
	known map[Key]*followed
}

// Follow has a sandbox's proxy looked after from now on. It returns at once. An older sandbox of the pod is no longer followed.
func (m *Manager) Follow(s podnet.Sandbox) {
	m.init()
	key := Key{PodUID: s.UID, Sandbox: s.ID}
	m.mu.Lock()
	for other := range m.known {
		if other.PodUID == key.PodUID && other != key {
			m.unfollow(other)
		}
	}
	if f, ok := m.known[key]; ok {
		f.sandbox = s
	} else {
		m.known[key] = newFollowed(s)
	}
	m.mu.Unlock()
	m.queue.Add(key)
}

// Keep is Follow, but a sandbox that is followed already is not looked at for it.
func (m *Manager) Keep(s podnet.Sandbox) {
	m.init()
	m.mu.Lock()
	f := m.known[Key{PodUID: s.UID, Sandbox: s.ID}]
	kept := f != nil && f.sandbox == s
	m.mu.Unlock()
	if !kept {
		m.Follow(s)
	}
}

// Unfollow forgets a pod that is gone. Its containers end with its sandbox.
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

// unfollow no longer follows a sandbox. What is left of it is removed as soon as its containers have ended. m.mu is held.
func (m *Manager) unfollow(key Key) {
	f := m.known[key]
	delete(m.known, key)
	m.Rollout.leave(key)
	if f != nil && f.shown.profile != "" {
		m.summarize(f.shown.profile)
	}
	m.queue.Add(key)
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

// look has some sandboxes looked at.
func (m *Manager) look(keys []Key) {
	for _, key := range keys {
		m.queue.Add(key)
	}
}

// sandboxOf returns what is known of a sandbox now.
func (m *Manager) sandboxOf(f *followed) podnet.Sandbox {
	m.mu.Lock()
	defer m.mu.Unlock()
	return f.sandbox
}

// choose notes the profile that a sandbox's pod has chosen.
func (m *Manager) choose(f *followed, profile string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f.profile = profile
}

// letGo no longer follows a sandbox whose pod has finished and stays as an object.
func (m *Manager) letGo(key Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unfollow(key)
}

// drop forgets a sandbox whose pod has no proxy any more.
func (m *Manager) drop(key Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unfollow(key)
	m.Reporter.Retract(key.PodUID)
}

func (m *Manager) init() {
	m.once.Do(func() {
		m.known = map[Key]*followed{}
		bounds := workqueue.NewTypedItemExponentialFailureRateLimiter[Key](firstPause, lastErrorPause)
		m.queue = workqueue.NewTypedRateLimitingQueue(jitter.Limiter[Key]{Bounds: bounds})
	})
}

// Start works until ctx ends. It is a manager.Runnable.
func (m *Manager) Start(ctx context.Context) error {
	m.init()
	var working sync.WaitGroup
	for range workers {
		working.Go(func() {
			for m.next(ctx) {
			}
		})
	}
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for m.sweep(ctx); ctx.Err() == nil; {
		select {
		case <-ctx.Done():
		case <-tick.C:
			m.sweep(ctx)
		}
	}
	m.queue.ShutDown()
	working.Wait()
	return nil
}

// next works on one sandbox, and reports whether there may be more.
func (m *Manager) next(ctx context.Context) bool {
	key, ended := m.queue.Get()
	if ended {
		return false
	}
	defer m.queue.Done(key)
	m.mu.Lock()
	f := m.known[key]
	m.mu.Unlock()
	if f == nil || ctx.Err() != nil {
		m.queue.Forget(key)
		m.clean(ctx, key)
		return true
	}
	logger := log.FromContext(ctx).WithValues("pod", m.sandboxOf(f).Pod(), "podUID", key.PodUID, "sandbox", key.Sandbox)
	again, err := m.step(log.IntoContext(ctx, logger), key, f)
	m.watch(ctx, key, f)
	switch {
	case err != nil && ctx.Err() == nil:
		logger.Error(err, "proxy not looked after")
		m.queue.AddRateLimited(key)
	case again > 0:
		m.queue.Forget(key)
		m.queue.AddAfter(key, again)
	default:
		m.queue.Forget(key)
	}
	return true
}
