package install

import (
	"context"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
)

// maxQuietTimes bounds the wait for quiet, as a multiple of the quiet time.
const maxQuietTimes = 10

// watch notices changes of network configurations, of the binary, and of the targets of symbolic links. It ignores other projects'
// temporary files, which have other extensions.
type watch struct {
	watcher         *fsnotify.Watcher // nil if the node has no inotify instance left
	events          <-chan fsnotify.Event
	errors          <-chan error
	confDir, binary string
	quietTime       time.Duration
	targets         []string // directories of symbolic links' targets
}

func newWatch(confDir, binary string, quietTime time.Duration) *watch {
	w := &watch{confDir: confDir, binary: binary, quietTime: quietTime}
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
// to check it regularly.
func (w *watch) follow(dir string) bool { return w.watcher != nil && w.watcher.Add(dir) == nil }

// next waits for a change, for at most d. After a change it waits until nothing has changed for the quiet time: some projects write
// files in place, and half a file must not be read.
func (w *watch) next(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	var limit <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		case <-limit:
			return
		case <-w.errors: //nolint:errcheck // more events than the kernel keeps: read all files
		case e := <-w.events:
			if !w.concerns(e) {
				continue
			}
		}
		if limit == nil {
			limit = time.After(maxQuietTimes * w.quietTime)
		}
		timer.Reset(w.quietTime)
	}
}

func (w *watch) concerns(e fsnotify.Event) bool {
	if e.Op == fsnotify.Chmod {
		return false
	}
	dir := filepath.Dir(e.Name)
	return e.Name == w.binary ||
		(dir == w.confDir || slices.Contains(w.targets, dir)) && slices.Contains(extensions(), filepath.Ext(e.Name))
}

// followTarget watches the directory of a symbolic link's target.
func (w *watch) followTarget(path string) {
	if dir := filepath.Dir(path); dir != w.confDir && !slices.Contains(w.targets, dir) && w.follow(dir) {
		w.targets = append(w.targets, dir)
	}
}
