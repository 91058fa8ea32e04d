// Package home is a sandbox's directory: files and secrets of its proxies, and notes for the next agent.
//
//	secrets.go      reads secrets, and renews them
//	remove.go       removes what is no longer needed
//	secretfiles.go  writes secrets so that a reader sees one version
//	mounts.go       what a proxy sees of the directory, and what only Istio's has there
//	facts.go        what was decided when a proxy was made, and the pod as it was then
//	envoy.go        the memory that Envoys share
//	notes.go        what was noted of proxies: told to drain, secrets changed
//	lock.go         which agent works
//	home.go         the directories, which are not on disks
//	label.go        SELinux labels of what is made while the proxy runs
package home

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

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/sidecars/profile"
)

// Homes are the directories of the node's proxies: one for each sandbox, below Root. They are in memory (tmpfs), are visible to the
// node's root only, and end with the sandbox.
type Homes struct {
	// Root is a directory that the agent and the runtime see at the same path.
	Root string
	// MayHaveSecrets returns why secrets are not to be put there, or nil. It may be nil itself.
	MayHaveSecrets func() error
}

// NewHomes makes the root. It refuses a directory on a disk.
func NewHomes(root string) (Homes, error) {
	if err := InMemory(root); err != nil {
		return Homes{}, err
	}
	return Homes{Root: root, MayHaveSecrets: func() error { return notSwapped(root) }}, nil
}

// InMemory makes a directory that only the node's root may enter, and returns why the files of proxies are not to be put there, or nil: they must not
// outlive a restart of the node, as the sandboxes of pods do not.
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
	if err := os.Chmod(dir, 0o700); err != nil { //nolint:gosec // a directory, which the kubelet may have made
		return fmt.Errorf("close %s to others: %w", dir, err)
	}
	return nil
}

// Home is one sandbox's directory.
type Home struct{ Path string }

// Of returns the home of a sandbox.
func (h Homes) Of(k podnet.Key) Home { return Home{filepath.Join(h.Root, name(k))} }

// Epoch stands for one proxy of the sandbox: its files, secrets, facts and notes in the home.
type Epoch struct {
	home   Home
	number uint32
}

// Epoch returns what the proxy of an epoch has.
func (h Home) Epoch(number uint32) Epoch { return Epoch{h, number} }

// name is a sandbox's directory. Both parts are IDs that the API server and the runtime have made.
func name(k podnet.Key) string { return filepath.Base(k.PodUID) + "." + filepath.Base(k.Sandbox) }

// Owner is a user and a group of the node.
type Owner struct{ UID, GID int64 }

// Prepare makes the directories that all proxies of the sandbox share. Existing ones stay.
func (h Home) Prepare(o Owner) error {
	if err := os.MkdirAll(h.Path, 0o711); err != nil { //nolint:gosec // the root directory above lets only root pass
		return fmt.Errorf("make directory: %w", err)
	}
	return errors.Join(makeDir(h.Run(), o), makeDir(h.Shm(), o), note(h, keyOf(User, uint32(o.UID))))
}

// GiveSocket has an epoch's HAProxy hand over its listeners to a proxy of another user. A HAProxy without such a socket has none to hand over.
func (h Home) GiveSocket(epoch uint32, o Owner) error {
	err := os.Lchown(filepath.Join(h.Run(), profile.HandoverSocket(epoch)), int(o.UID), int(o.GID))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("give the listeners of the running proxy to the next one: %w", err)
	}
	return nil
}

// Run is the directory that the proxies can write to.
func (h Home) Run() string { return filepath.Join(h.Path, "run") }

// Shm is the directory of the proxies' shared memory.
func (h Home) Shm() string { return filepath.Join(h.Path, "shm") }

// makeDir makes a directory that only the proxy can enter.
func makeDir(path string, o Owner) error {
	err := os.Mkdir(path, 0o700)
	if err == nil {
		err = label(path)
	}
	if err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make directory: %w", err)
	}
	if err := os.Lchown(path, int(o.UID), int(o.GID)); err != nil {
		return fmt.Errorf("give directory to the proxy: %w", err)
	}
	return nil
}

// WriteFiles writes the proxy's files, in place of the files of an agent that was killed.
func (e Epoch) WriteFiles(files map[string]string, o Owner) error {
	dir := e.Files()
	if err := os.RemoveAll(dir); err != nil { // of an agent that was killed before it started the proxy
		return fmt.Errorf("remove old files: %w", err)
	}
	if err := makeDir(dir, o); err != nil {
		return err
	}
	for name, content := range files {
		if err := WriteOwned(filepath.Join(dir, name), []byte(content), 0o400, o); err != nil {
			return err
		}
	}
	return nil
}

// Files is the directory of the proxy's files.
func (e Epoch) Files() string { return e.path("files") }

// Secrets is the directory of the proxy's secrets.
func (e Epoch) Secrets() string { return e.path("secrets") }

func (e Epoch) path(kind string) string { return filepath.Join(e.home.Path, kind+"-"+number(e.number)) }

// jsonSuffix ends the names of files that an epoch has.
const jsonSuffix = ".json"

func number(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// RemoveEach removes the entries of a directory that go, and returns their names. A missing directory has none. A dry run only returns the names.
func RemoveEach(dir string, dryRun bool, goes func(e os.DirEntry) (bool, error)) (removed []string, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list what proxies have left: %w", err)
	}
	for _, e := range entries {
		gone, errGoes := goes(e)
		if errGoes != nil {
			return removed, errors.Join(err, fmt.Errorf("remove what proxies have left: %w", errGoes))
		}
		if gone && !dryRun {
			if errRemove := os.RemoveAll(filepath.Join(dir, e.Name())); errRemove != nil {
				err = errors.Join(err, fmt.Errorf("remove what proxies have left: %w", errRemove))
				continue
			}
		}
		if gone {
			removed = append(removed, e.Name())
		}
	}
	return removed, err
}

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

// istioHome is the directory of what only Istio's proxy has.
func istioHome(e Epoch) string { return e.path("istio") }

// WriteOwned writes a file of a proxy's. An owner's UID of -1 leaves it root's.
func WriteOwned(path string, content []byte, mode os.FileMode, o Owner) error {
	if err := os.WriteFile(path, content, mode); err != nil {
		return fmt.Errorf("write file of the proxy: %w", err)
	}
	if err := label(path); err != nil {
		return err
	}
	if err := os.Lchown(path, int(o.UID), int(o.GID)); err != nil {
		return fmt.Errorf("give file to the proxy: %w", err)
	}
	return nil
}

// notSwapped returns why files in a directory in memory could come to be on a disk, or nil.
func notSwapped(root string) error {
	swaps, err := os.ReadFile("/proc/swaps")
	if err != nil {
		return fmt.Errorf("ask whether the node swaps: %w", err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("read the agent's mounts: %w", err)
	}
	if swapsToDisk(string(swaps)) && !neverSwapped(string(mounts), root) {
		return fmt.Errorf("the node swaps, which would write secrets to its disk: switch swap off there, or mount a tmpfs with the option noswap at %s", root)
	}
	return nil
}

// swapsToDisk reports whether one of the kernel's swap areas (/proc/swaps) is not in memory itself.
func swapsToDisk(swaps string) bool {
	for i, line := range strings.Split(swaps, "\n") {
		if fields := strings.Fields(line); i > 0 && len(fields) > 0 && !strings.HasPrefix(fields[0], "/dev/zram") {
			return true
		}
	}
	return false
}

// neverSwapped reports whether a directory is on a tmpfs with the option noswap, by the process's mounts (/proc/self/mountinfo).
func neverSwapped(mounts, dir string) bool {
	const pathField, afterDash = 4, 3
	found, length := false, -1
	for line := range strings.Lines(mounts) {
		fields := strings.Fields(line)
		dash := slices.Index(fields, "-")
		if dash < pathField || len(fields) <= dash+afterDash {
			continue
		}
		path := fields[pathField]
		if path != dir && !strings.HasPrefix(dir, strings.TrimSuffix(path, "/")+"/") || len(path) < length {
			continue
		}
		length = len(path) // a later mount on the same path hides an earlier one
		found = fields[dash+1] == "tmpfs" && slices.Contains(strings.Split(fields[dash+afterDash], ","), "noswap")
	}
	return found
}
