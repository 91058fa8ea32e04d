package sidecars

import (
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"

	"istio-pod-network-controller/internal/jitter"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/sidecars/probe"
)

// lastErrorPause is the longest pause after an error of the runtime or the API server, which restart within seconds.
const lastErrorPause = 2 * time.Second

// registry has the sandboxes that are followed, and the queue of sandboxes to look at.
type registry struct {
	queue workqueue.TypedRateLimitingInterface[podnet.Key]
	mu    sync.Mutex
	known map[podnet.Key]*entry
}

// entry is a sandbox that is followed.
type entry struct {
	// registry.mu protects what reconciles share with others: the sandbox, the pod's choice, the proxy's health after the last reconcile, and what
	// has come since.
	sandbox podnet.Sandbox
	profile string
	health  Health
	inbox   inbox
	// memory is the worker's: the queue hands out a key once.
	memory memory
}

// inbox is what has come since a sandbox's last reconcile.
type inbox struct {
	replies []probe.Reply
	exits   map[string]processExit // by container ID
	// finishedAt is when its application ended while another agent worked.
	finishedAt time.Time
}

// processExit is the end of a proxy's process. certain reports whether the kernel says so: a runtime lists the proxy as running for a while.
type processExit struct {
	at      time.Time
	certain bool
}

func newRegistry() *registry {
	bounds := workqueue.NewTypedItemExponentialFailureRateLimiter[podnet.Key](firstPause, lastErrorPause)
	return &registry{known: map[podnet.Key]*entry{}, queue: workqueue.NewTypedRateLimitingQueue(jitter.Limiter[podnet.Key]{Bounds: bounds})}
}

// add follows a sandbox.
func (r *registry) add(s podnet.Sandbox) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.known[s.Key()]; e != nil {
		e.sandbox = s
	} else {
		r.known[s.Key()] = &entry{sandbox: s, memory: memory{since: time.Now()}}
	}
	r.queue.Add(s.Key())
}

// drop no longer follows the sandboxes that go, and returns them. What they leave is removed once their containers have ended.
func (r *registry) drop(goes func(podnet.Key) bool) (gone []podnet.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key := range r.known {
		if goes(key) {
			gone = append(gone, key)
			delete(r.known, key)
			r.queue.Add(key)
		}
	}
	return gone
}

// find returns the sandbox that is followed by a key.
func (r *registry) find(key podnet.Key) (s podnet.Sandbox, followed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.known[key]; e != nil {
		return e.sandbox, true
	}
	return podnet.Sandbox{}, false
}

func (r *registry) hasPod(uid string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key := range r.known {
		if key.PodUID == uid {
			return true
		}
	}
	return false
}

func (r *registry) enqueue(keys []podnet.Key) {
	for _, key := range keys {
		r.queue.Add(key)
	}
}

// enqueueProfile enqueues the sandboxes whose pods have chosen a profile, all if name is empty.
func (r *registry) enqueueProfile(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, e := range r.known {
		if name == "" || e.profile == name {
			r.queue.Add(key)
		}
	}
}

// update changes what is known of a sandbox, if it is followed.
func (r *registry) update(key podnet.Key, change func(*entry)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.known[key]; e != nil {
		change(e)
	}
}

// take returns the entry of a key, nil if it is not followed, with its sandbox and what has come since the last reconcile, which heard takes away.
func (r *registry) take(key podnet.Key) (*entry, podnet.Sandbox, inbox) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.known[key]
	if e == nil {
		return nil, podnet.Sandbox{}, inbox{}
	}
	in := e.inbox
	in.exits, in.replies = maps.Clone(in.exits), slices.Clone(in.replies)
	return e, e.sandbox, in
}

// heard takes away what a reconcile has taken in, and notes the pod's choice. moved reports whether that is another one.
func (r *registry) heard(e *entry, in inbox, choice string) (moved bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	moved, e.profile = e.profile != choice, choice
	e.inbox.replies = e.inbox.replies[len(in.replies):]
	if e.inbox.finishedAt.Equal(in.finishedAt) {
		e.inbox.finishedAt = time.Time{}
	}
	maps.DeleteFunc(e.inbox.exits, func(id string, _ processExit) bool { _, is := in.exits[id]; return is })
	return moved
}

// replied notes a reply. The sandbox is looked at for it if it is news.
func (r *registry) replied(key podnet.Key, e *entry, reply probe.Reply, isNews bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.inbox.replies = append(e.inbox.replies, reply)
	if r.known[key] == e && isNews {
		r.queue.Add(key)
	}
}

// health counts the sandboxes of each profile that pods have chosen by the health of their proxies, with zeros.
func (r *registry) health() map[string]map[Health]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[string]map[Health]int{}
	for _, e := range r.known {
		if e.profile == "" || e.health == "" {
			continue
		}
		if out[e.profile] == nil {
			out[e.profile] = map[Health]int{HealthReady: 0, HealthStarting: 0, HealthSilent: 0, HealthFailed: 0, HealthRefused: 0, HealthEnded: 0}
		}
		out[e.profile][e.health]++
	}
	return out
}
