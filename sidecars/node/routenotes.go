package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/sidecars/home"
)

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
