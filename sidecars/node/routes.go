package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/wait"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/sidecars/home"
)

// routeTarget is the proxy to which the rules of a sandbox lead: that of the pod's own which serves, whatever its profile says by now, or a shared one.
type routeTarget struct {
	// Profile is empty once the rules were removed.
	Profile string `json:"profile"`
	// Shared reports whether the node's pods share the proxy.
	Shared bool `json:"shared,omitempty"`
	// Proxy is nil for a shared proxy: its rules follow its profile.
	Proxy *intent.ManagedProxy `json:"proxy,omitempty"`
}

func (t routeTarget) equals(other routeTarget) bool {
	return t.Profile == other.Profile && t.Shared == other.Shared && equality.Semantic.DeepEqual(t.Proxy, other.Proxy)
}

// route is the record of a sandbox.
type route struct {
	Sandbox string      `json:"-"`
	Now     routeTarget `json:"now"`
	// Applied reports whether the rules lead there already.
	Applied bool `json:"applied"`
	// unwritten reports whether its note could not be written: it is tried again.
	unwritten bool
}

// prunePause is the time between two looks for sandboxes that are gone.
const prunePause = 10 * time.Minute

// routes remembers to which proxies the rules of the node's pods lead. A pod keeps the proxy of a profile, whatever it chooses, until it
// chooses none. Each route is also noted in a file in memory, for the next agent.
type routes struct {
	dir   string
	mu    sync.Mutex
	known map[string]route // by the pod's UID
}

// of returns the target of a sandbox. Without an ID: of the pod's last sandbox.
func (r *routes) of(s podnet.Sandbox) (found routeTarget, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	got, known := r.known[s.UID]
	if !known || s.ID != "" && s.ID != got.Sandbox {
		return routeTarget{}, false
	}
	return got.Now, true
}

// last returns the target of a pod, whichever sandbox it has; without a profile if there is none.
func (r *routes) last(podUID string) routeTarget {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known[podUID].Now
}

// leadTo reports whether some pod's rules lead to a proxy of a profile.
func (r *routes) leadTo(profile string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.known {
		if one.Now.Profile == profile {
			return true
		}
	}
	return false
}

// keeps returns the target of a pod that keeps its proxy although it has chosen another profile. why says so; it is "" for all other pods.
func (r *routes) keeps(s podnet.Sandbox, chosen readProfile) (has routeTarget, why string) {
	has, known := r.of(s)
	if !known || has.Profile == "" || chosen.name == "" || has.Profile == chosen.name {
		return routeTarget{}, ""
	}
	return has, fmt.Sprintf("the profile changed from %q to %q: takes effect for new pods, and this one keeps its proxy; or have it choose %q first, without a proxy until it chooses again",
		has.Profile, chosen.name, intent.SidecarNone)
}

// holds reports whether a shared proxy has to keep a sandbox: its rules lead there, or it is not known where they lead.
func (r *routes) holds(profile string, s podnet.Sandbox) bool {
	has, known := r.of(s)
	return !known || has.Profile == profile
}

// change has the rules of a sandbox lead to a proxy of the pod's own, and reports whether they do. A change is due then, and applied is called after
// it. Without serves, the proxy is only about to start: a pod without rules gets none for it.
func (r *routes) change(s podnet.Sandbox, to intent.ManagedProxy, serves bool) (applied, changed bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old, known := r.known[s.UID]
	known = known && old.Sandbox == s.ID && old.Now.Profile != ""
	now := routeTarget{Profile: to.Profile, Proxy: &to}
	switch {
	case !known && !serves, known && (old.Now.Shared || old.Now.Profile != to.Profile):
		return true, false, nil
	case known && old.Now.equals(now):
		return old.Applied, false, nil
	}
	return false, true, r.put(s, route{Sandbox: s.ID, Now: now})
}

// applied notes where the rules of a sandbox lead by now, and returns where they led before. A target of the pod's own proxies that has changed
// meanwhile stays: its own change is due.
func (r *routes) applied(s podnet.Sandbox, now routeTarget) (before routeTarget, changed bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old, known := r.known[s.UID]
	if !known && now.Profile == "" {
		r.known[s.UID] = route{Sandbox: s.ID, Now: now, Applied: true} // without a note, which is for the next agent
		return routeTarget{}, false, nil
	}
	if !known || old.Sandbox != s.ID {
		old = route{}
	} else if old.Now.Proxy != nil && now.Proxy != nil && old.Now.Profile == now.Profile && !old.Now.equals(now) {
		return old.Now, false, nil
	}
	changed = old.Sandbox == "" || !old.Now.equals(now) || !old.Applied
	if changed || old.unwritten {
		err = r.put(s, route{Sandbox: s.ID, Now: now, Applied: true})
	}
	return old.Now, changed, err
}

// forget forgets a pod.
func (r *routes) forget(podUID string) { r.forgetSandbox(podUID, "") }

// forgetSandbox forgets a pod, unless it has another sandbox by now. "" is any.
func (r *routes) forgetSandbox(podUID, sandbox string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if old, known := r.known[podUID]; known && (sandbox == "" || sandbox == old.Sandbox) {
		removeNote(r.path(podUID, old.Sandbox))
		delete(r.known, podUID)
	}
}

// prune forgets sandboxes that have ended without a call of forget. It looks for them every prunePause until ctx ends.
func (r *routes) prune(ctx context.Context, ready func(ctx context.Context, sandbox string) (bool, error)) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		for uid, sandbox := range r.all() {
			runs, err := ready(ctx, sandbox)
			if err != nil {
				logr.FromContextOrDiscard(ctx).Error(err, "notes of ended sandboxes not looked for")
				return
			}
			if !runs {
				r.forgetSandbox(uid, sandbox)
			}
		}
	}, prunePause)
}

func (r *routes) all() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[string]string{}
	for uid, n := range r.known {
		out[uid] = n.Sandbox
	}
	return out
}

// routesName is the directory of the notes, beside the homes of sandboxes. Names of homes have a dot, so this is none of them.
const routesName = "routes"

// unfinished ends the name of a note that home.ReplaceFile is writing.
const unfinished = ".new"

// newRoutes reads what an earlier agent has noted. A note that cannot be read counts as none.
func newRoutes(dir string) (*routes, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look for notes: %w", err)
	}
	out := &routes{dir: dir, known: map[string]route{}}
	for _, e := range entries {
		uid, sandbox, ok := strings.Cut(e.Name(), ".")
		path := filepath.Join(dir, e.Name())
		r, err := home.ReadFile[route](path)
		if !ok || strings.HasSuffix(sandbox, unfinished) || err != nil {
			removeNote(path)
			continue
		}
		r.Sandbox = sandbox
		out.known[uid] = r
	}
	return out, nil
}

// put notes the route of a pod, also in a file, whole or not at all. If that fails, an older note is removed: no note is better than an outdated one.
// r.mu is held.
func (r *routes) put(s podnet.Sandbox, n route) error {
	uid, path := s.UID, r.path(s.UID, n.Sandbox)
	if old, known := r.known[uid]; known && old.Sandbox != n.Sandbox {
		removeNote(r.path(uid, old.Sandbox)) // of a sandbox that was made anew
	}
	r.known[uid] = n
	if n.Now.Profile == "" {
		removeNote(path)
		return nil
	}
	err := writeNote(path, n)
	if errors.Is(err, fs.ErrNotExist) { // another agent has just removed the directory with its last note
		err = writeNote(path, n)
	}
	if err != nil {
		n.unwritten = true
		r.known[uid] = n
		_ = os.Remove(path) // which needs no room
		return fmt.Errorf("note where a pod's rules lead: %w", err)
	}
	return nil
}

func writeNote(path string, n route) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return home.ReplaceFile(path, n)
}

// removeNote removes a note, and the directory with the last one. It ignores errors: a note that stays is read by the next agent, whose prune
// removes it once the sandbox has ended.
func removeNote(path string) {
	_ = os.Remove(path)
	_ = os.Remove(filepath.Dir(path)) // unless there are others
}

// path is the file of a sandbox. Both parts are IDs that the API server and the runtime have made.
func (r *routes) path(uid, sandbox string) string {
	return filepath.Join(r.dir, filepath.Base(uid)+"."+filepath.Base(sandbox))
}

// removeEnded removes the notes of sandboxes that have ended, for nodes without an agent. all reports whether there is a directory of notes
// and all notes in it are such, so that the directory is removed, too. A dry run returns the same, and removes nothing.
func removeEnded(ctx context.Context, dir string, ready func(ctx context.Context, sandbox string) (bool, error), dryRun bool) (all bool, err error) {
	all = true
	_, err = home.RemoveEach(dir, dryRun, func(e fs.DirEntry) (bool, error) {
		_, sandbox, _ := strings.Cut(strings.TrimSuffix(e.Name(), unfinished), ".")
		runs, err := ready(ctx, sandbox)
		all = all && !runs
		return !runs, err
	})
	if err != nil || !all {
		return false, err
	}
	if dryRun {
		_, err = os.Stat(dir)
	} else {
		err = os.Remove(dir)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
