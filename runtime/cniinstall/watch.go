package cniinstall

import (
	"context"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
)

// maxSettle bounds the wait for quiet, as a multiple of the settle time.
const maxSettle = 10

// watch notices changes of network configurations, of the binary, and of the targets of symbolic links. It ignores other projects'
// temporary files, which have other extensions.
type watch struct {
	watcher         *fsnotify.Watcher // nil if the node has no inotify instance left
	events          <-chan fsnotify.Event
	errors          <-chan error
	confDir, binary string
	settle          time.Duration
	targets         []string // directories of symbolic links' targets
}

func newWatch(confDir, binary string, settle time.Duration) *watch {
	w := &watch{confDir: confDir, binary: binary, settle: settle}
	if watcher, err := fsnotify.NewWatcher(); err == nil {
		w.watcher, w.events, w.errors = watcher, watcher.Events, watcher.Errors
	}
	return w
}

func (w *watch) close() {
	if w.watcher != nil {
		_ = w.watcher.Close()
	}
}

// follow watches a directory, also again if it was made anew. If it returns false, the directory cannot be watched, and the caller has
// to look at it regularly.
func (w *watch) follow(dir string) bool { return w.watcher != nil && w.watcher.Add(dir) == nil }

// next waits for a change, for at most d. After a change it waits until the writers are quiet.
func (w *watch) next(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		case <-w.errors: //nolint:errcheck // more events than the kernel keeps: look
			w.quiet(ctx)
			return
		case e := <-w.events:
			if w.concerns(e) {
				w.quiet(ctx)
				return
			}
		}
	}
}

// quiet waits until nothing has changed for the settle time: some projects write files in place, and half a file must not be
// read.
func (w *watch) quiet(ctx context.Context) {
	limit := time.NewTimer(maxSettle * w.settle)
	defer limit.Stop()
	still := time.NewTimer(w.settle)
	defer still.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-limit.C:
			return
		case <-still.C:
			return
		case e := <-w.events:
			if w.concerns(e) {
				still.Reset(w.settle)
			}
		}
	}
}

func (w *watch) concerns(e fsnotify.Event) bool {
	if e.Op == fsnotify.Chmod {
		return false
	}
	switch dir := filepath.Dir(e.Name); {
	case e.Name == w.binary:
		return true
	case dir == w.confDir || slices.Contains(w.targets, dir):
		return slices.Contains(extensions(), filepath.Ext(e.Name))
	}
	return false
}

// followTarget watches the directory of a symbolic link's target.
func (w *watch) followTarget(path string) {
	if dir := filepath.Dir(path); dir != w.confDir && !slices.Contains(w.targets, dir) && w.follow(dir) {
		w.targets = append(w.targets, dir)
	}
}
