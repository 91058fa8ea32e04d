package shared

import (
	"context"
	"maps"
	"os"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/internal/jitter"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/profile"
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

	chosen following

	mu      sync.Mutex // protects what other goroutines see
	watched string     // the container whose end is waited for
	known   bool
	served  map[podnet.Key]bool // replaced as a whole
	figures Figures

	// What follows belongs to the goroutine of run.
	lock     *os.File // nil unless this agent works on the proxy
	state    state
	loaded   bool
	unsaved  bool
	proxy    proxy
	newer    successor
	bad      badProfile
	batch    int // how many pods may join at once, after a configuration that was not taken; 0 is all
	reloaded time.Time
	checked  time.Time // when the ports were looked at while no proxy was there
	pauses   pausing
	names    namespaces
	compiled *profile.Version // of the configuration in force
	told     string           // the last fault that was logged
	screen   screen
}

// proxy is the container as it was last seen.
type proxy struct {
	sidecar.Container
	ended  bool      // it is known to have ended; mu protects it
	silent time.Time // since when it does not answer; zero if it does
	// answered reports whether it has answered this agent, and gid the group that it runs as, as far as it has.
	answered bool
	gid      int64
}

func newGroup(m *Manager, profile string) *group {
	return &group{
		Manager: m, name: profile, dir: newDirectory(m.Root, profile), dirty: make(chan struct{}, 1),
		chosen: following{all: map[podnet.Key]followed{}}, figures: Figures{Reloads: map[Result]uint64{Applied: 0, Refused: 0, Unconfirmed: 0, Failed: 0}}, pauses: pausing{}, names: namespaces{m.Sandboxes, map[podnet.Key]time.Time{}, map[podnet.Key]bool{}},
		screen: screen{m.Reporter, map[string]shownPod{}},
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
	if g.chosen.follow(s, look) {
		g.poke()
	}
}

// leave no longer follows a pod. A round finds out whether it is still served.
func (g *group) leave(podUID string) {
	if g.chosen.leave(podUID) {
		g.poke()
	}
}

func (g *group) serves(key podnet.Key) (serves, known bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.served[key], g.known
}

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

func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// watchEnd has a round as soon as the proxy's container has ended.
func (g *group) watchEnd(ctx context.Context) {
	g.mu.Lock()
	defer g.mu.Unlock()
	id := g.proxy.ID
	if id == "" || g.watched == id {
		return
	}
	g.watched = id
	go func() {
		err := g.Proxies.Wait(ctx, id)
		g.mu.Lock()
		if err != nil || ctx.Err() != nil { // the next look finds out
			if g.watched == id {
				g.watched = "" // and waits again
			}
			g.mu.Unlock()
			return
		}
		if g.proxy.ID == id {
			g.proxyEnded()
		}
		g.mu.Unlock()
		g.poke()
	}()
}

func (g *group) figuresNow() Figures {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := g.figures
	out.Reloads = maps.Clone(out.Reloads)
	return out
}

func (g *group) hasEnded() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.proxy.ended
}

// proxyEnded notes that the proxy has ended: it serves nobody. g.mu is held.
func (g *group) proxyEnded() {
	g.proxy.ended = true
	g.served = nil // a round may be reading it
	f := &g.figures
	f.Waiting, f.Served, f.Running, f.Newest = f.Waiting+f.Served, 0, false, false
}
