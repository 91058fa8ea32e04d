package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/containernetworking/cni/libcni"

	"istio-pod-network-controller/internal/jitter"
)

const (
	// maxTries bounds how often lists are read again while other projects write them.
	maxTries = 10
	// maxClearPause bounds the pause before the entry is removed again.
	maxClearPause = 30 * time.Second
)

// Uninstall removes the entry from every list. A file without foreign changes is then byte for byte what it was before. The binary
// stays: runtimes call it once more for each sandbox that was made with it.
func (i *Installer) Uninstall() error {
	defer removeTemps(i.config.ConfDir)
	for try := 1; ; try++ {
		lists, err := chainedLists(i.config.ConfDir, i.entry.kind)
		errs, changed := []error{err}, false
		for _, n := range lists {
			if err := replace(n.path, n.data, n.withoutType(i.entry.kind)); err != nil {
				changed = changed || errors.Is(err, errChanged)
				errs = append(errs, fmt.Errorf("take the plugin out of %s: %w", n.path, err))
			}
		}
		if !changed || try == maxTries {
			return errors.Join(errs...)
		}
	}
}

// RemoveBinary removes the binary. Use it when no sandbox of the node was made with it. Absent is success.
func (i *Installer) RemoveBinary() error {
	if err := os.Remove(i.binary()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// CheckRemoved returns an error that names the lists that still hold the plugin's entry. It is for an agent that does not serve it.
func (i *Installer) CheckRemoved() error {
	lists, err := chainedLists(i.config.ConfDir, i.entry.kind)
	errs := []error{err}
	for _, n := range lists {
		errs = append(errs, fmt.Errorf("%s holds the plugin's entry, and no agent serves it", n.path))
	}
	return errors.Join(errs...)
}

// chainedLists returns all lists with a plugin of a type, and an error that names the lists that could not be read. Invalid lists, which
// no runtime reads, are left out; without a directory there is none.
func chainedLists(dir, kind string) ([]network, error) {
	files, err := libcni.ConfFiles(dir, []string{listSuffix})
	var lists []network
	errs := []error{err}
	for _, file := range files {
		switch n, err := load(file); {
		case err == nil && len(n.indicesOf(kind)) > 0:
			lists = append(lists, n)
		case err != nil && !isInvalid(err):
			errs = append(errs, err)
		}
	}
	return lists, errors.Join(errs...)
}

// Clear keeps the plugin out of the chain until ctx ends. No pod starts with an entry that no agent serves, and an entry may come back
// after Uninstall: from the replaced agent, or from a project that restores a copy of its file. The first entry is removed at once.
// Then the bound of a random pause doubles each time, up to 30 s. It is a manager.Runnable.
func (i *Installer) Clear(ctx context.Context) error {
	w := newWatch(i.config.ConfDir, i.binary(), i.quietTime)
	defer w.close()
	quietSince, pause := time.Now(), time.Duration(0)
	for {
		again := i.resync
		if !w.follow(i.config.ConfDir) {
			again = maxClearPause
		}
		if left := i.CheckRemoved(); left != nil {
			if pause > 0 {
				i.notify(Event{Kind: Leftover, Path: i.config.ConfDir, Err: fmt.Errorf("%w: it was put back", left)})
				jitter.Wait(ctx, pause)
			}
			if i.clear() != nil {
				again = i.pace.first
			}
			quietSince, pause = time.Now(), min(max(i.pace.first, 2*pause), maxClearPause)
		} else if time.Since(quietSince) > i.pace.window {
			pause = 0
		}
		w.next(ctx, again)
		if ctx.Err() != nil {
			return nil
		}
	}
}

func (i *Installer) clear() error {
	err := i.Uninstall()
	if err == nil {
		err = i.CheckRemoved()
	}
	e := Event{Kind: Removed, Path: i.config.ConfDir}
	if err != nil {
		e.Kind, e.Err = Leftover, err
	}
	i.notify(e)
	return err
}
