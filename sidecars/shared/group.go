package shared

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/home"
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
	*Config
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

// successor is the newest pod of the DaemonSet while another one is the proxy:
//
//   - It starts with the files that are in force, and takes the listeners of the proxy over a socket in run: from then on both accept
//     connections. While it starts, changes wait, so that both have the same listeners.
//   - Once it answers the version that is in force it is the proxy, and its pod becomes ready. The DaemonSet deletes the older pod, which
//     finishes its connections.
//   - Until then, and if it ends before, nothing changes: the older pod serves.
type successor struct {
	pod   string    // its UID, or ""
	since time.Time // when it was seen first
	told  time.Time // when it was told last to read its files
	slow  bool      // that it does not take over was logged
}

func newGroup(c *Config, profile string) *group {
	return &group{
		Config: c, name: profile, dir: newDirectory(c.Root, profile), dirty: make(chan struct{}, 1),
		chosen: following{all: map[podnet.Key]followed{}}, figures: Figures{Reloads: map[Result]uint64{Applied: 0, Refused: 0, Unconfirmed: 0, Failed: 0}}, pauses: pausing{}, names: namespaces{c.Sandboxes, map[podnet.Key]time.Time{}, map[podnet.Key]bool{}},
		screen: screen{c.Reporter, map[string]shownPod{}},
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

func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
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

// acquire reports whether this agent works on the proxy. Without the lock it only reads the state that the working agent has written.
func (g *group) acquire(ctx context.Context) (mine bool, err error) {
	if g.lock == nil {
		if g.lock, err = home.LockFile(filepath.Join(g.dir.path, "lock"), os.O_RDWR|os.O_CREATE); err != nil {
			return false, err
		}
		g.loaded = false
	}
	if g.loaded && g.lock != nil {
		return true, nil
	}
	if g.state, err = g.dir.load(); err != nil {
		log.FromContext(ctx).Error(err, "what the shared proxy has confirmed is not known")
	}
	g.loaded = true
	return g.lock != nil, nil
}

func (g *group) unlock() {
	if g.lock != nil {
		home.Unlock(g.lock)
	}
}

// save writes down what the proxy has confirmed. What could not be written is tried again.
func (g *group) save() error {
	err := g.dir.save(g.state)
	g.unsaved = err != nil
	return err
}

// swap writes a configuration down, and lets current lead to it.
func (g *group) swap(rec *record) error {
	pending := g.state.with(rec)
	if err := g.dir.save(pending); err != nil {
		return err
	}
	g.state = pending
	return g.dir.point(currentLink, rec.Dir)
}

// profileOf returns the profile that a configuration was rendered from.
func (g *group) profileOf(rec *record) (*profile.Version, error) {
	if g.compiled != nil && g.compiled.Hash == rec.Hash {
		return g.compiled, nil
	}
	out, err := profile.New(g.name, rec.Spec)
	if err != nil {
		return nil, fmt.Errorf("use the profile's last version: %w", err)
	}
	g.compiled = out
	return out, nil
}
