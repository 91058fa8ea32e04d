package sidecars

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
)

// Paths that a proxy sees.
const (
	PathRun   = "/run/sidecar"
	PathFiles = "/etc/sidecar"
	pathShm   = "/dev/shm"
)

// Homes are the directories of the node's proxies: one for each sandbox, below Root. They are in memory (tmpfs), are visible to the
// node's root only, and end with the sandbox.
type Homes struct {
	// Root is a directory that the agent and the runtime see at the same path.
	Root string
	// inMemory returns why secrets are not to be put there, or nil.
	inMemory func() error
}

// NewHomes makes the root, and keeps everybody but the node's root out of it. It refuses one that is not in memory.
func NewHomes(root string) (Homes, error) {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return Homes{}, fmt.Errorf("make directory for proxies: %w", err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(root, &fs); err != nil {
		return Homes{}, fmt.Errorf("look at %s: %w", root, err)
	}
	if fs.Type != unix.TMPFS_MAGIC {
		return Homes{}, fmt.Errorf("%s is not in memory (tmpfs): the files of proxies are not to be kept on a disk", root)
	}
	if err := os.Chmod(root, 0o700); err != nil { //nolint:gosec // a directory
		return Homes{}, fmt.Errorf("close %s to others: %w", root, err)
	}
	return Homes{Root: root, inMemory: func() error { return notSwapped(root) }}, nil
}

// home is one sandbox's directory.
type home struct{ path string }

func (h Homes) of(k Key) home { return home{filepath.Join(h.Root, k.name())} }

// owner is the proxy's user and group.
type owner struct{ uid, gid int64 }

// RunDirectory is the directory of the sandbox that its proxies can write to.
func (h Homes) RunDirectory(s podnet.Sandbox) string {
	return filepath.Join(h.of(Key{PodUID: s.UID, Sandbox: s.ID}).path, "run")
}

// HandoverSocket is the path of the socket through which an epoch's HAProxy hands over its listeners.
func (h Homes) HandoverSocket(s podnet.Sandbox, epoch uint32) string {
	return filepath.Join(h.RunDirectory(s), handoverSocket(epoch))
}

// Key is a pod's sandbox. A pod whose sandbox is made anew has a new Key.
type Key struct{ PodUID, Sandbox string }

// name is the key's directory. Both parts are IDs that the API server and the runtime have made.
func (k Key) name() string { return filepath.Base(k.PodUID) + "." + filepath.Base(k.Sandbox) }

// prepare makes the directories that all proxies of the sandbox share. Existing ones stay.
func (h home) prepare(o owner) error {
	if err := os.MkdirAll(h.path, 0o711); err != nil { //nolint:gosec // the root directory above lets only root pass
		return fmt.Errorf("make directory: %w", err)
	}
	for _, name := range []string{"run", "shm"} {
		if err := makeDir(filepath.Join(h.path, name), o); err != nil {
			return err
		}
	}
	return nil
}

// makeDir makes a directory that only the proxy can enter.
func makeDir(path string, o owner) error {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make directory: %w", err)
	}
	if err := os.Lchown(path, int(o.uid), int(o.gid)); err != nil {
		return fmt.Errorf("give directory to the proxy: %w", err)
	}
	return nil
}

// write makes the files of one epoch.
func (h home) write(epoch uint32, files map[string]string, o owner) error {
	dir := h.files(epoch)
	if err := os.RemoveAll(dir); err != nil { // of an agent that was killed before it started the proxy
		return fmt.Errorf("remove old files: %w", err)
	}
	if err := makeDir(dir, o); err != nil {
		return err
	}
	for name, content := range files {
		if err := writeOwned(filepath.Join(dir, name), []byte(content), o); err != nil {
			return err
		}
	}
	return nil
}

func (h home) files(epoch uint32) string {
	return filepath.Join(h.path, "files-"+number(epoch))
}

// forget removes what belongs to one epoch. Its socket in the run directory may be in use until the proxy ends.
func (h home) forget(epoch uint32) error {
	return errors.Join(
		h.forgetSecrets(epoch), os.RemoveAll(h.files(epoch)),
		os.RemoveAll(filepath.Join(h.path, "run", handoverSocket(epoch))), os.RemoveAll(filepath.Join(h.path, "run", admin(epoch))),
		h.unnote(factDraining, epoch), h.unnote(factReady, epoch), h.unnote(factSuccessor, epoch), h.unnote(factLeft, epoch),
	)
}

// prune removes the files and secrets of epochs without a container: the kubelet removes containers that have ended, too.
func (h home) prune(there []sidecar.Container) error {
	entries, err := os.ReadDir(h.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		kind, number, _ := strings.Cut(e.Name(), "-")
		epoch, errNumber := strconv.ParseUint(strings.TrimSuffix(number, grantSuffix), 10, 32)
		if kind != "files" && kind != "secrets" || errNumber != nil ||
			slices.ContainsFunc(there, func(c sidecar.Container) bool { return uint64(c.Epoch) == epoch }) {
			continue
		}
		err = errors.Join(err, os.RemoveAll(filepath.Join(h.path, e.Name())))
	}
	return err
}

// remove removes everything.
func (h home) remove() error { return os.RemoveAll(h.path) }

// discard is forget for the epoch of a container that the kubelet has removed. What it cannot remove goes with the home.
func (h home) discard(epoch uint32) { _ = h.forget(epoch) }

// mounts returns what a proxy of an epoch sees of the home.
func (h home) mounts(epoch uint32) []sidecar.Mount {
	return []sidecar.Mount{
		{Host: filepath.Join(h.path, "run"), Container: PathRun},
		{Host: h.files(epoch), Container: PathFiles, ReadOnly: true},
		{Host: filepath.Join(h.path, "shm"), Container: pathShm}, // the application uses the sandbox's /dev/shm
	}
}

// handoverSocket is the name of an epoch's admin socket in the run directory.
func handoverSocket(epoch uint32) string {
	return "handover-" + number(epoch) + ".sock"
}
