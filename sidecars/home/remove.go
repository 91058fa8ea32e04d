package home

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/profile"
)

// RemoveEnded removes the homes of sandboxes that have ended, and returns their names, and whether others are used. It is for nodes without an agent: an
// agent removes homes by itself. A sandbox that is not ready never becomes ready again, so beside an agent it does no harm.
func (h Homes) RemoveEnded(ctx context.Context, ready func(ctx context.Context, sandbox string) (bool, error), dryRun bool) (removed []string, used bool, err error) {
	removed, err = h.RemoveIf(dryRun, func(key podnet.Key, _ Home) (bool, error) {
		runs, err := ready(ctx, key.Sandbox)
		used = used || runs
		return !runs, err
	})
	return removed, used, err
}

// RemoveIf removes the homes that go, and returns their names.
func (h Homes) RemoveIf(dryRun bool, goes func(podnet.Key, Home) (bool, error)) (removed []string, err error) {
	return RemoveEach(h.Root, dryRun, func(e fs.DirEntry) (bool, error) {
		uid, sandbox, ok := strings.Cut(e.Name(), ".")
		if !ok || !e.IsDir() {
			return false, nil
		}
		return goes(podnet.Key{PodUID: uid, Sandbox: sandbox}, Home{filepath.Join(h.Root, e.Name())})
	})
}

// RemoveUnshared removes the directories of shared proxies below root that are nobody's any more, and returns their names: no agent has the
// directory's lock, and runs says that the node runs no proxy of the profile. It has their locks itself meanwhile.
func RemoveUnshared(ctx context.Context, root string, runs func(ctx context.Context, profile string) (bool, error), dryRun bool) (removed []string, err error) {
	var locks []*os.File
	defer func() {
		for _, lock := range locks {
			Unlock(lock)
		}
	}()
	return RemoveEach(root, dryRun, func(e fs.DirEntry) (bool, error) {
		if !e.IsDir() {
			return false, nil
		}
		if used, err := runs(ctx, e.Name()); err != nil || used {
			return false, err
		}
		lock, err := LockFile(filepath.Join(root, e.Name(), "lock"), os.O_RDONLY)
		if lock != nil {
			locks = append(locks, lock)
		}
		if errors.Is(err, fs.ErrNotExist) { // no agent has ever used it
			return true, nil
		}
		return lock != nil, err
	})
}

// Forget removes what the proxy has. Its socket in the run directory may be in use until it ends.
func (e Epoch) Forget() error {
	return errors.Join(
		e.ForgetSecrets(), os.RemoveAll(e.Files()), os.RemoveAll(istioHome(e)), os.RemoveAll(factsFile(e)), e.Unnote(Ready, Successor, Telling, Draining),
		os.RemoveAll(filepath.Join(e.home.Run(), profile.HandoverSocket(e.number))), os.RemoveAll(filepath.Join(e.home.Run(), profile.AdminSocket(e.number))),
	)
}

// Prune removes the directories of epochs without a container: the kubelet removes containers that have ended, too.
func (h Home) Prune(there []sidecar.Container) error {
	_, err := RemoveEach(h.Path, false, func(e fs.DirEntry) (bool, error) {
		kind, number, _ := strings.Cut(e.Name(), "-")
		epoch, errNumber := strconv.ParseUint(strings.TrimSuffix(number, jsonSuffix), 10, 32)
		return slices.Contains([]string{"files", "secrets", "istio", "facts"}, kind) && errNumber == nil &&
			!slices.ContainsFunc(there, func(c sidecar.Container) bool { return uint64(c.Epoch) == epoch }), nil
	})
	return err
}

// Remove removes the directory.
func (h Home) Remove() error { return os.RemoveAll(h.Path) }

// ForgetSecrets removes the proxy's secrets.
func (e Epoch) ForgetSecrets() error {
	return errors.Join(os.RemoveAll(e.Secrets()), os.RemoveAll(grantFile(e.Secrets())), e.Unnote(Rotated))
}
