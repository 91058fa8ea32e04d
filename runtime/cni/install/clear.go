package install

import (
	"context"
	"errors"
	"fmt"
	"time"

	"istio-pod-network-controller/internal/jitter"
)

// maxClearPause bounds the pause before an entry that was put back is removed again.
const maxClearPause = 30 * time.Second

// Clear keeps the plugin out of the chain until ctx ends. No pod starts with an entry that no agent serves, and others may put it back
// after Uninstall: the agent that this one replaces, or a project that restores a copy of its file. The first entry is removed at once.
// If it comes back, the bound of a random pause doubles each time, up to 30 s. It is a manager.Runnable.
func (i *Installer) Clear(ctx context.Context) error {
	w := newWatch(i.config.ConfDir, i.binary(), i.config.QuietTime)
	defer w.close()
	quietSince, pause := time.Now(), time.Duration(0)
	for {
		again := i.config.Resync
		if !w.follow(i.config.ConfDir) {
			again = maxClearPause
		}
		if left := i.CheckRemoved(); left != nil {
			if pause > 0 {
				i.notify(Event{Kind: Leftover, Path: i.config.ConfDir, Err: fmt.Errorf("%w: it was put back", left)})
				jitter.Wait(ctx, pause)
			}
			if i.clear() != nil {
				again = i.config.Backoff
			}
			quietSince, pause = time.Now(), nextPause(pause, i.config.Backoff)
		} else if time.Since(quietSince) > i.config.Window {
			pause = 0
		}
		w.next(ctx, again)
		if ctx.Err() != nil {
			return nil
		}
	}
}

// nextPause returns the pause that follows another one.
func nextPause(pause, first time.Duration) time.Duration {
	return min(max(first, 2*pause), maxClearPause)
}

func (i *Installer) clear() error {
	err := i.Uninstall()
	if err == nil {
		err = i.CheckRemoved()
	}
	if err != nil {
		i.notify(Event{Kind: Leftover, Path: i.config.ConfDir, Err: err})
		return err
	}
	i.notify(Event{Kind: Removed, Path: i.config.ConfDir})
	return nil
}

// CheckRemoved returns an error that names the lists that still hold the plugin's entry. It is for an agent that does not serve it.
func (i *Installer) CheckRemoved() error {
	lists, err := i.lists()
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range lists {
		n, err := load(path)
		switch {
		case err == nil && len(n.indicesOf(i.entry.kind)) > 0:
			errs = append(errs, fmt.Errorf("%s holds the plugin's entry, and no agent serves it", path))
		case err != nil && !isInvalid(err):
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
