package shared

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/home"
)

const (
	stateName   = "state.json"
	currentLink = "current"
	nextLink    = "next"
	versionName = "version.sock"
	servingName = "serving"
	versionDir  = "v-"

	dirMode     = 0o700
	visibleMode = 0o750 // the proxy's group may look
	fileMode    = 0o440
)

// directory is what a profile's proxy and the agent share on the node:
//
//   - files/v-N: one configuration; files/next and files/current are links to two of them. The proxy sees files read-only.
//   - run: the proxy's. A pod of it has the directory run/UID, with the socket on which it answers its version, and the file serving once
//     the agent has found that it serves all pods: then the pod becomes ready.
//   - state.json: what the proxy has confirmed.
//   - lock: held by the agent that works.
//
// Links and state are replaced by rename: a full file system leaves them as they were.
type directory struct{ path string }

func newDirectory(root, profile string) directory {
	return directory{filepath.Join(root, filepath.Base(profile))}
}

func (d directory) files() string { return filepath.Join(d.path, "files") }

func (d directory) run() string { return filepath.Join(d.path, "run") }

// own opens the directory of a proxy's pod. The proxy can write in run, so links are not followed.
func (d directory) own(pod string) (*os.File, error) {
	fd, err := unix.Open(filepath.Join(d.run(), filepath.Base(pod)), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the directory of the proxy's pod %s: %w", pod, err)
	}
	return os.NewFile(uintptr(fd), pod), nil
}

func (d directory) mark(pod string) error {
	own, err := d.own(pod)
	if err != nil {
		return err
	}
	defer own.Close() //nolint:errcheck // nothing was written
	fd, err := unix.Openat(int(own.Fd()), servingName, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o444)
	if errors.Is(err, unix.EEXIST) {
		return nil
	} else if err != nil {
		return fmt.Errorf("let the proxy's pod %s become ready: %w", pod, err)
	}
	return unix.Close(fd)
}

// forgotten is how old the directory of a proxy's pod is at least when it is removed. A pod whose container is started anew is not listed.
const forgotten = 10 * time.Minute

func (d directory) sweep(there []sidecar.Container) error {
	_, err := home.RemoveEach(d.run(), false, func(e os.DirEntry) (bool, error) {
		info, errInfo := e.Info()
		return errInfo == nil && e.IsDir() && time.Since(info.ModTime()) >= forgotten &&
			!slices.ContainsFunc(there, func(c sidecar.Container) bool { return c.PodUID == e.Name() }), nil
	})
	return err
}

// prepare makes what is missing. The kubelet may have made a part of it for the proxy's pod. Only root may enter the root directory.
func (d directory) prepare() error {
	for _, name := range []string{"", "files", "run"} {
		if err := os.MkdirAll(filepath.Join(d.path, name), dirMode); err != nil {
			return fmt.Errorf("make directory: %w", err)
		}
	}
	return nil
}

// write makes a directory with a configuration, and lets next lead there. It returns the directory's name.
func (d directory) write(files map[string]string, gid int64) (name string, err error) {
	name, err = d.unused()
	if err != nil {
		return "", err
	}
	path := filepath.Join(d.files(), name)
	if err := os.Mkdir(path, visibleMode); err != nil {
		return "", fmt.Errorf("make directory for files: %w", err)
	}
	err = os.Lchown(path, -1, int(gid))
	for file, content := range files {
		err = errors.Join(err, home.WriteOwned(filepath.Join(path, file), []byte(content), fileMode, home.Owner{UID: -1, GID: gid}))
	}
	if err == nil {
		err = d.point(nextLink, name)
	}
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(path))
	}
	return name, nil
}

func (d directory) unused() (string, error) {
	entries, err := os.ReadDir(d.files())
	if err != nil {
		return "", fmt.Errorf("look for files: %w", err)
	}
	last := 0
	for _, e := range entries {
		if text, ok := strings.CutPrefix(e.Name(), versionDir); ok {
			if n, err := strconv.Atoi(text); err == nil {
				last = max(last, n)
			}
		}
	}
	return versionDir + strconv.Itoa(last+1), nil
}

func (d directory) point(link, to string) error {
	return home.ReplaceLink(filepath.Join(d.files(), link), to)
}

// target returns the configuration that a link leads to, or "" if there is none.
func (d directory) target(link string) string {
	to, err := os.Readlink(filepath.Join(d.files(), link))
	if err != nil || !strings.HasPrefix(to, versionDir) || !d.holds(to) {
		return ""
	}
	return filepath.Base(to)
}

// prune keeps the configurations that the proxy may have or that links lead to, and removes the rest.
func (d directory) prune(s state) error {
	kept := map[string]bool{d.target(currentLink): true, d.target(nextLink): true}
	for _, one := range s.records() {
		kept[one.Dir] = true
	}
	_, err := home.RemoveEach(d.files(), false, func(e os.DirEntry) (bool, error) {
		return strings.HasPrefix(e.Name(), versionDir) && !kept[e.Name()], nil
	})
	return err
}

// load returns the state that was saved last. An unreadable state counts as none.
func (d directory) load() (state, error) {
	out, err := home.ReadFile[state](filepath.Join(d.path, stateName))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return out, fmt.Errorf("read %s: %w", filepath.Join(d.path, stateName), err)
	}
	return out, nil
}

func (d directory) save(s state) error {
	if err := home.ReplaceFile(filepath.Join(d.path, stateName), s); err != nil {
		return fmt.Errorf("write what the proxy has confirmed: %w", err)
	}
	return nil
}

func (d directory) holds(name string) bool {
	_, err := os.Stat(filepath.Join(d.files(), filepath.Base(name)))
	return err == nil
}
