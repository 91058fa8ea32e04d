package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"istio-pod-network-controller/internal/podnet"
)

// lead says to which profile's proxy the rules of a sandbox lead.
type lead struct {
	// Profile is empty if there are no rules any more.
	Profile string `json:"profile"`
	// Shared reports whether the node's pods share the proxy. Group is the proxy's group, and Drain how long it finishes its connections.
	Shared bool          `json:"shared,omitempty"`
	Group  int64         `json:"group,omitempty"`
	Drain  time.Duration `json:"drain,omitempty"`
}

// led is where the rules of a sandbox lead, and where they led before.
type led struct {
	Sandbox string `json:"-"`
	Now     lead   `json:"now"`
	// Before is what the rules led to before, until Since.
	Before lead      `json:"before"`
	Since  time.Time `json:"since"`
}

// draining reports whether what the rules led to before may still finish its connections. A clock that was set back does not make that longer.
func (l led) draining(now time.Time) bool {
	return l.Before.Profile != "" && now.Sub(l.Since).Abs() < l.Before.Drain
}

// leadsName is the directory of the notes, beside the homes of sandboxes. Names of homes have a dot, so this is none of them.
const leadsName = "leads"

// unfinished ends the name of a note that is being written.
const unfinished = ".new"

// prunePause is the time between two looks for sandboxes that are gone.
const prunePause = 10 * time.Minute

// leads remembers to which profiles' proxies the rules of the node's pods lead: a proxy must not end before they lead elsewhere. Each is
// noted in a file as well, in memory, for the agent that comes next in the middle of a move. The directory is there as long as a note is.
type leads struct {
	dir   string
	mu    sync.Mutex
	known map[string]led // by the pod's UID
	// unwritten are the pods whose note could not be written, by UID: it is tried again.
	unwritten map[string]bool
}

// newLeads reads what an earlier agent has noted. A note that cannot be read counts as none.
func newLeads(dir string) (*leads, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look for notes: %w", err)
	}
	out := &leads{dir: dir, known: map[string]led{}, unwritten: map[string]bool{}}
	for _, e := range entries {
		uid, sandbox, ok := strings.Cut(e.Name(), ".")
		path := filepath.Join(dir, e.Name())
		text, err := os.ReadFile(path) //nolint:gosec // in the agent's own directory
		l := led{Sandbox: sandbox}
		if !ok || strings.HasSuffix(sandbox, unfinished) || err != nil || json.Unmarshal(text, &l) != nil {
			removeNote(path)
			continue
		}
		out.known[uid] = l
	}
	return out, nil
}

// of returns the lead of a sandbox. If the sandbox has no ID yet, it is taken for the pod's last one.
func (l *leads) of(s podnet.Sandbox) (found led, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	found, known = l.known[s.UID]
	if !known || s.ID != "" && s.ID != found.Sandbox {
		return led{}, false
	}
	return found, true
}

// set notes a new lead, and returns the one before.
func (l *leads) set(s podnet.Sandbox, now lead) (before lead, changed bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old, known := l.known[s.UID]
	if !known && now.Profile == "" || known && old.Sandbox == s.ID && old.Now == now {
		if l.unwritten[s.UID] {
			err = l.write(s.UID, old)
		}
		return old.Now, false, err
	}
	if known && old.Sandbox != s.ID {
		removeNote(l.path(s.UID, old.Sandbox)) // of a sandbox that was made anew
		old = led{}
	}
	next := led{Sandbox: s.ID, Now: now}
	if old.Now.Profile != "" && old.Now.Profile != now.Profile {
		next.Before, next.Since = old.Now, time.Now()
	} else {
		next.Before, next.Since = old.Before, old.Since
	}
	l.known[s.UID] = next
	return old.Now, true, l.write(s.UID, next)
}

// write writes the note of a lead, whole or not at all. If that fails, an older note is removed: no note is better than an outdated one.
func (l *leads) write(uid string, n led) error {
	path := l.path(uid, n.Sandbox)
	delete(l.unwritten, uid)
	if n.Now.Profile == "" {
		removeNote(path)
		return nil
	}
	text, err := json.Marshal(n)
	if err == nil {
		err = writeNote(path, text)
	}
	if errors.Is(err, fs.ErrNotExist) { // another agent has just removed the directory with its last note
		err = writeNote(path, text)
	}
	if err != nil {
		l.unwritten[uid] = true
		_ = os.Remove(path) // which needs no room
		return fmt.Errorf("note where a pod's rules lead: %w", err)
	}
	return nil
}

func writeNote(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(path+unfinished, text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+unfinished, path)
}

// removeNote removes a note, and the directory with the last one. It ignores errors: a note that stays is read by the next agent, whose prune
// removes it once the sandbox has ended.
func removeNote(path string) {
	_ = os.Remove(path)
	_ = os.Remove(filepath.Dir(path)) // unless there are others
}

// path is the file of a sandbox. Both parts are IDs that the API server and the runtime have made.
func (l *leads) path(uid, sandbox string) string {
	return filepath.Join(l.dir, filepath.Base(uid)+"."+filepath.Base(sandbox))
}

// forget drops a pod that is gone.
func (l *leads) forget(podUID string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if old, known := l.known[podUID]; known {
		removeNote(l.path(podUID, old.Sandbox))
		delete(l.known, podUID)
		delete(l.unwritten, podUID)
	}
}

// prune forgets sandboxes that have ended without a call of forget. It looks for them every prunePause until ctx ends.
func (l *leads) prune(ctx context.Context, ready func(ctx context.Context, sandbox string) (bool, error)) {
	for ctx.Err() == nil {
		for uid, sandbox := range l.all() {
			runs, err := ready(ctx, sandbox)
			if err != nil {
				logr.FromContextOrDiscard(ctx).Error(err, "notes of ended sandboxes not looked for")
				break
			}
			if now, known := l.of(podnet.Sandbox{UID: uid, ID: sandbox}); !runs && known && now.Sandbox == sandbox {
				l.forget(uid)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(prunePause):
		}
	}
}

// all returns the sandbox of each pod.
func (l *leads) all() map[string]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[string]string{}
	for uid, n := range l.known {
		out[uid] = n.Sandbox
	}
	return out
}

// removeEnded removes the notes of sandboxes that have ended, for nodes without an agent. all reports whether there is a directory of notes
// and all notes in it are such, so that the directory is removed, too. A dry run returns the same, and removes nothing.
func removeEnded(ctx context.Context, dir string, ready func(ctx context.Context, sandbox string) (bool, error), dryRun bool) (all bool, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for notes: %w", err)
	}
	all = true
	for _, e := range entries {
		_, sandbox, _ := strings.Cut(strings.TrimSuffix(e.Name(), unfinished), ".")
		runs, err := ready(ctx, sandbox)
		switch {
		case err != nil:
			return false, err
		case runs:
			all = false
		case !dryRun:
			_ = os.Remove(filepath.Join(dir, e.Name())) // the directory of one that stays stays, too
		}
	}
	if !all || dryRun {
		return all, nil
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("remove notes: %w", err)
	}
	return true, nil
}
