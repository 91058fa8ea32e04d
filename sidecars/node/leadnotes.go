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

	"istio-pod-network-controller/sidecars/home"
)

// leadsName is the directory of the notes, beside the homes of sandboxes. Names of homes have a dot, so this is none of them.
const leadsName = "leads"

// unfinished ends the name of a note that home.ReplaceFile is writing.
const unfinished = ".new"

// newLeads reads what an earlier agent has noted. A note that cannot be read counts as none.
func newLeads(dir string) (*leads, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look for notes: %w", err)
	}
	out := &leads{dir: dir, known: map[string]led{}}
	for _, e := range entries {
		uid, sandbox, ok := strings.Cut(e.Name(), ".")
		path := filepath.Join(dir, e.Name())
		text, err := os.ReadFile(path)
		l := led{Sandbox: sandbox}
		if !ok || strings.HasSuffix(sandbox, unfinished) || err != nil || json.Unmarshal(text, &l) != nil {
			removeNote(path)
			continue
		}
		out.known[uid] = l
	}
	return out, nil
}

// write notes a lead, also in a file, whole or not at all. If that fails, an older note is removed: no note is better than an outdated one.
func (l *leads) write(uid string, n led) error {
	path := l.path(uid, n.Sandbox)
	n.unwritten = false
	l.known[uid] = n
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
		l.known[uid] = n
		_ = os.Remove(path) // which needs no room
		return fmt.Errorf("note where a pod's rules lead: %w", err)
	}
	return nil
}

func writeNote(path string, n led) error {
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
func (l *leads) path(uid, sandbox string) string {
	return filepath.Join(l.dir, filepath.Base(uid)+"."+filepath.Base(sandbox))
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
