package shared

import (
	"context"
	"os"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/internal/jitter"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/sidecars"
)

const (
	// roundPause gathers the events of a moment into one round.
	roundPause = 200 * time.Millisecond
	// roundTimeout bounds one round.
	roundTimeout = time.Minute
	// errorPause is the time until a round is repeated after an error of the runtime, the API server or the file system.
	errorPause = 2 * time.Second
)

// group is the pods that have chosen one profile, and their proxy.
type group struct {
	*Manager
	name    string // the profile's
	dir     directory
	dirty   chan struct{} // holds one at most: a round is due
	started bool          // Manager.mu protects it

	mu       sync.Mutex // protects what other goroutines see
	watched  string     // the container whose end is waited for
	followed map[sidecars.Key]*followed
	known    bool
	served   map[sidecars.Key]bool // replaced as a whole
	figures  Figures

	// What follows belongs to the goroutine of run.
	lock     *os.File // while this agent is the one that works
	state    state
	loaded   bool
	unsaved  bool
	proxy    proxy
	bad      badProfile
	batch    int // how many pods may join at once, after a configuration that was not taken; 0 is all
	reloaded time.Time
	checked  time.Time // when the ports were looked at while no proxy was there
	pauses   map[string]*podPauses
	lost     map[sidecars.Key]bool      // whose network namespace has lost its name in the middle of a round
	names    map[sidecars.Key]time.Time // when the name of a network namespace was looked at
	compiled *sidecars.Profile          // that of the configuration in force
	told     string                     // the last fault that was logged
	shown    map[string]shownPod
	sum      sidecars.Summary
}

// followed is a sandbox whose pod has chosen the profile.
type followed struct {
	sandbox podnet.Sandbox
	// told counts the events that may have changed the pod. known is what told was when the pod that is in force was read.
	told, known int
	// since is when a change was told of that is not in force; zero if nobody waits for one, or it was refused meanwhile.
	since time.Time
}

// proxy is the container as it was last seen.
type proxy struct {
	Instance
	ended  bool      // it is known to have ended; mu protects it
	silent time.Time // since when it does not answer; zero if it does
	// answered reports whether it has answered this agent, and gid the group that it runs as, as far as it has.
	answered bool
	gid      int64
}

func newGroup(m *Manager, profile string) *group {
	return &group{
		Manager: m, name: profile, dir: newDirectory(m.Root, profile), dirty: make(chan struct{}, 1),
		followed: map[sidecars.Key]*followed{}, figures: newFigures(),
		pauses: map[string]*podPauses{}, lost: map[sidecars.Key]bool{}, names: map[sidecars.Key]time.Time{}, shown: map[string]shownPod{},
	}
}

// poke has a round soon.
func (g *group) poke() {
	select {
	case g.dirty <- struct{}{}:
	default:
	}
}

func (g *group) follow(s podnet.Sandbox, look bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	key := keyOf(s)
	for other := range g.followed {
		if other.PodUID == s.UID && other != key {
			delete(g.followed, other)
		}
	}
	f := g.followed[key]
	switch {
	case f == nil:
		g.followed[key] = &followed{sandbox: s, told: 1, since: time.Now()}
	case look:
		waits := f.told != f.known && f.sandbox == s // a round is due already
		f.sandbox = s
		if f.since.IsZero() {
			f.since = time.Now()
		}
		if f.told++; waits {
			return
		}
	default:
		return
	}
	g.poke()
}

// leave no longer follows a pod. A round finds out whether it is still served.
func (g *group) leave(podUID string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for key := range g.followed {
		if key.PodUID == podUID {
			delete(g.followed, key)
			g.poke()
		}
	}
}

func (g *group) follows(podUID string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for key := range g.followed {
		if key.PodUID == podUID {
			return true
		}
	}
	return false
}

func (g *group) serves(key sidecars.Key) (serves, known bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.served[key], g.known
}

// run works in rounds until ctx ends.
func (g *group) run(ctx context.Context) {
	defer g.unlock()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-g.dirty:
		case <-timer.C:
		}
		began := time.Now()
		again := g.work(ctx)
		pause(ctx, roundPause-time.Since(began))
		timer.Reset(max(again, 0))
	}
}

// work is one round with its own deadline. It returns when the next one is due.
func (g *group) work(ctx context.Context) time.Duration {
	bounded, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	again, err := g.round(bounded)
	if err != nil && ctx.Err() == nil {
		log.FromContext(ctx).Error(err, "shared proxy not looked after")
		again = jitter.Full(errorPause)
	}
	if ctx.Err() == nil {
		g.watchEnd(ctx)
	}
	return again
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
