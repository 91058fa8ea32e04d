package sidecars

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// RemoveEnded removes the homes of sandboxes that have ended, and returns their names. With the last one goes what is remembered of profiles. It is
// for nodes without an agent: an agent removes homes by itself. A sandbox that is not ready never becomes ready again, so beside an agent it does
// no harm.
func (h Homes) RemoveEnded(ctx context.Context, ready func(ctx context.Context, sandbox string) (bool, error), dryRun bool) (removed []string, err error) {
	used := false
	removed, err = h.remove(dryRun, func(key Key, _ home) (bool, error) {
		runs, err := ready(ctx, key.Sandbox)
		used = used || runs
		return !runs, err
	})
	if err != nil || used {
		return removed, err
	}
	good, err := removeGood(h.Root, dryRun)
	if good {
		removed = append(removed, goodName)
	}
	return removed, err
}

// remove removes the homes that go, and returns their names.
func (h Homes) remove(dryRun bool, goes func(Key, home) (bool, error)) (removed []string, err error) {
	entries, err := os.ReadDir(h.Root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list what proxies have left: %w", err)
	}
	for _, e := range entries {
		uid, sandbox, ok := strings.Cut(e.Name(), ".")
		if !ok || !e.IsDir() {
			continue
		}
		one := home{filepath.Join(h.Root, e.Name())}
		gone, err := goes(Key{PodUID: uid, Sandbox: sandbox}, one)
		if err == nil && gone && !dryRun {
			if err = one.remove(); err != nil {
				err = fmt.Errorf("remove what a proxy has left: %w", err)
			}
		}
		if err != nil {
			return removed, err
		}
		if gone {
			removed = append(removed, e.Name())
		}
	}
	return removed, nil
}

// RemoveUnshared removes the directories of shared proxies below root that are nobody's any more, and returns their names: no agent has the
// directory's lock, and runs says that the node runs no proxy of the profile.
func RemoveUnshared(ctx context.Context, root string, runs func(ctx context.Context, profile string) (bool, error), dryRun bool) (removed []string, err error) {
	entries, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list what shared proxies have left: %w", err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		used, err := runs(ctx, e.Name())
		if err != nil {
			return removed, err
		}
		if used {
			continue
		}
		gone, err := removeUnlocked(filepath.Join(root, e.Name()), dryRun)
		if err != nil {
			return removed, fmt.Errorf("remove what a shared proxy has left: %w", err)
		}
		if gone {
			removed = append(removed, e.Name())
		}
	}
	return removed, nil
}

// removeUnlocked removes a directory if nobody has the lock in it. It has the lock itself meanwhile.
func removeUnlocked(dir string, dryRun bool) (removed bool, err error) {
	lock, err := os.Open(filepath.Join(dir, "lock"))
	switch {
	case errors.Is(err, fs.ErrNotExist): // no agent has ever used it
	case err != nil:
		return false, err
	default:
		defer lock.Close()
		if locked, err := Lock(lock); !locked {
			return false, err
		}
	}
	if dryRun {
		return true, nil
	}
	return true, os.RemoveAll(dir)
}
