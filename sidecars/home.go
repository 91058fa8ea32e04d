package sidecars

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/profile"
)

// pathShm is where a proxy sees the shared memory of the sandbox's proxies.
const pathShm = "/dev/shm"

// Homes are the directories of the node's proxies: one for each sandbox, below Root. They are in memory (tmpfs), are visible to the
// node's root only, and end with the sandbox.
type Homes struct {
	// Root is a directory that the agent and the runtime see at the same path.
	Root string
	// inMemory returns why secrets are not to be put there, or nil.
	inMemory func() error
}

// NewHomes makes the root, and keeps everybody but the node's root out of it. It refuses a directory on a disk.
func NewHomes(root string) (Homes, error) {
	if err := InMemory(root); err != nil {
		return Homes{}, err
	}
	if err := os.Chmod(root, 0o700); err != nil { //nolint:gosec // a directory
		return Homes{}, fmt.Errorf("close %s to others: %w", root, err)
	}
	return Homes{Root: root, inMemory: func() error { return notSwapped(root) }}, nil
}

// InMemory makes a directory, and returns why the files of proxies are not to be put there, or nil: they must not outlive a restart of the node, as
// the sandboxes of pods do not.
func InMemory(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make directory for proxies: %w", err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("look at %s: %w", dir, err)
	}
	if fs.Type != unix.TMPFS_MAGIC {
		return fmt.Errorf("%s is not in memory (tmpfs): the files of proxies are not to be kept on a disk", dir)
	}
	return nil
}

// home is one sandbox's directory.
type home struct{ path string }

func (h Homes) of(k Key) home { return home{filepath.Join(h.Root, k.name())} }

type owner struct{ uid, gid int64 }

// RunDirectory is the directory of the sandbox that its proxies can write to.
func (h Homes) RunDirectory(s podnet.Sandbox) string {
	return h.of(keyOf(s)).run()
}

// User returns which user of the node the sandbox's proxies run as: another one than the profile's in a pod with a user namespace.
func (h Homes) User(s podnet.Sandbox, p *profile.Version) uint32 {
	var info unix.Stat_t
	if err := unix.Lstat(h.RunDirectory(s), &info); err != nil { // there was no proxy yet
		return uint32(p.UID())
	}
	return info.Uid
}

// HandoverSocket is the path of the socket through which an epoch's HAProxy hands over its listeners.
func (h Homes) HandoverSocket(s podnet.Sandbox, epoch uint32) string {
	return filepath.Join(h.RunDirectory(s), profile.HandoverSocket(epoch))
}

// AdminSocket is the path of the socket on which an epoch's Envoy has its admin interface.
func (h Homes) AdminSocket(s podnet.Sandbox, epoch uint32) string {
	return filepath.Join(h.RunDirectory(s), profile.AdminSocket(epoch))
}

// Key is a pod's sandbox. A pod whose sandbox is made anew has a new Key.
type Key struct{ PodUID, Sandbox string }

func keyOf(s podnet.Sandbox) Key { return Key{PodUID: s.UID, Sandbox: s.ID} }

// name is the key's directory. Both parts are IDs that the API server and the runtime have made.
func (k Key) name() string { return filepath.Base(k.PodUID) + "." + filepath.Base(k.Sandbox) }

// prepare makes the directories that all proxies of the sandbox share. Existing ones stay.
func (h home) prepare(o owner) error {
	if err := os.MkdirAll(h.path, 0o711); err != nil { //nolint:gosec // the root directory above lets only root pass
		return fmt.Errorf("make directory: %w", err)
	}
	return errors.Join(makeDir(h.run(), o), makeDir(h.shm(), o))
}

// run is the directory that the proxies can write to, shm the one of their shared memory.
func (h home) run() string { return filepath.Join(h.path, "run") }
func (h home) shm() string { return filepath.Join(h.path, "shm") }

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
		h.forgetSecrets(epoch), os.RemoveAll(h.files(epoch)), os.RemoveAll(istioHome(h, epoch)), h.unnote(epoch, factReady, factSuccessor, factTelling, factDraining),
		os.RemoveAll(filepath.Join(h.run(), profile.HandoverSocket(epoch))), os.RemoveAll(filepath.Join(h.run(), profile.AdminSocket(epoch))),
	)
}

// prune removes the directories of epochs without a container: the kubelet removes containers that have ended, too.
func (h home) prune(there []sidecar.Container) error {
	entries, err := os.ReadDir(h.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		kind, number, _ := strings.Cut(e.Name(), "-")
		epoch, errNumber := strconv.ParseUint(strings.TrimSuffix(number, grantSuffix), 10, 32)
		if kind != "files" && kind != "secrets" && kind != "istio" || errNumber != nil ||
			slices.ContainsFunc(there, func(c sidecar.Container) bool { return uint64(c.Epoch) == epoch }) {
			continue
		}
		err = errors.Join(err, os.RemoveAll(filepath.Join(h.path, e.Name())))
	}
	return err
}

func (h home) remove() error { return os.RemoveAll(h.path) }

// mounts returns what a proxy of an epoch sees of the home, and the directories of the node that its secrets name.
func (h home) mounts(epoch uint32, secrets []v1alpha1.SecretSource) []sidecar.Mount {
	out := []sidecar.Mount{
		{Host: h.run(), Container: profile.PathRun, Relabel: true},
		{Host: h.files(epoch), Container: profile.PathFiles, ReadOnly: true, Relabel: true},
		{Host: h.shm(), Container: pathShm, Relabel: true}, // the application uses the sandbox's /dev/shm
	}
	if len(secrets) > 0 {
		out = append(out, sidecar.Mount{Host: h.secrets(epoch), Container: profile.PathSecrets, ReadOnly: true, Relabel: true})
	}
	for _, s := range secrets {
		if s.WorkloadAPI != nil {
			out = append(out, sidecar.Mount{Host: s.WorkloadAPI.HostDirectory, Container: filepath.Join(profile.PathSecrets, s.Name), ReadOnly: true})
		}
	}
	return out
}

func (h home) secrets(epoch uint32) string { return filepath.Join(h.path, "secrets-"+number(epoch)) }

func (h home) forgetSecrets(epoch uint32) error {
	return errors.Join(os.RemoveAll(h.secrets(epoch)), os.RemoveAll(grantFile(h.secrets(epoch))), h.unnote(epoch, factRotated))
}

func number(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// DialSocket connects to a unix socket in a directory that a proxy can write to. It does not follow a link in the socket's place, which could
// lead anywhere. It connects by the descriptor's path in /proc, since path may be longer than a socket's address can be.
func DialSocket(ctx context.Context, path string) (net.Conn, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("look for the proxy's socket %s: %w", filepath.Base(path), err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	var info unix.Stat_t
	if err := unix.Fstat(fd, &info); err != nil {
		return nil, fmt.Errorf("look at the proxy's socket %s: %w", filepath.Base(path), err)
	}
	if info.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, fmt.Errorf("%s of the proxy is not a socket", filepath.Base(path))
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", "/proc/self/fd/"+strconv.Itoa(fd))
	if err != nil {
		return nil, fmt.Errorf("connect to the proxy's socket %s: %w", filepath.Base(path), err)
	}
	return conn, nil
}
