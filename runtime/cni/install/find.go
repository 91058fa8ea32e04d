package install

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sys/unix"
)

// ErrNoNetwork means that there is no network configuration yet that the plugin could be chained to.
var ErrNoNetwork = errors.New("no valid network configuration")

const (
	listSuffix = ".conflist"
	// maxConfig bounds the size of a configuration; real ones are a few kilobytes.
	maxConfig = 8 << 20
)

// extensions are the extensions of files that runtimes read.
func extensions() []string { return []string{".conf", listSuffix, ".json"} }

// network is the configuration that the runtime uses, as read.
type network struct {
	path string // without symbolic links
	conflist
}

// find returns the configuration that runtimes choose: the first valid one in lexical order. If an invalid one comes before it, runtimes
// differ (CRI-O skips it, containerd waits until it is valid), but both end with this one.
func find(dir string) (network, error) {
	files, err := libcni.ConfFiles(dir, extensions())
	if err != nil {
		return network{}, err
	}
	var reasons []string
	for _, file := range files {
		n, err := load(file)
		if !isInvalid(err) {
			return n, err
		}
		reasons = append(reasons, fmt.Sprintf("%s: %v", filepath.Base(file), err))
	}
	if _, err := os.Stat(dir); err != nil {
		reasons = []string{"no such directory"}
	}
	if len(reasons) == 0 {
		return network{}, fmt.Errorf("%w in %s", ErrNoNetwork, dir)
	}
	return network{}, fmt.Errorf("%w in %s: %s", ErrNoNetwork, dir, strings.Join(reasons, "; "))
}

// invalidError is why no runtime would use a file.
type invalidError struct{ error }

func (e invalidError) Unwrap() error { return e.error }

func isInvalid(err error) bool { return errors.As(err, new(invalidError)) }

// load reads one file. It follows a symbolic link and returns the path of the target: that is written to, and the link stays.
func load(path string) (network, error) {
	target, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, errLstat := os.Lstat(path); errLstat != nil {
			return network{}, invalidError{err}
		}
		return network{}, fmt.Errorf("%s is a symbolic link whose target is not mounted here: mount the target's directory, too", path)
	}
	if err != nil {
		return network{}, err
	}
	data, err := read(target)
	if err != nil {
		return network{}, err
	}
	if !strings.HasSuffix(path, listSuffix) {
		return network{}, checkSingle(path, data)
	}
	list, err := parseList(data)
	if errors.Is(err, errPluginsInDirectory) {
		pluginDir := filepath.Join(filepath.Dir(path), list.name)
		if _, errStat := os.Stat(pluginDir); errStat == nil {
			return network{}, fmt.Errorf("%s has its plugins in the directory %s, which is not supported: list them in the file", path, pluginDir)
		}
	}
	if err != nil {
		return network{}, invalidError{err}
	}
	return network{target, list}, nil
}

// checkSingle returns why a file that is no list cannot be chained to: it is invalid, or the runtime uses its one plugin alone.
func checkSingle(path string, data []byte) error {
	known, err := libcni.NetworkPluginConfFromBytes(data)
	switch {
	case err != nil:
		return invalidError{err}
	case known.Network.Name == "":
		return invalidError{errors.New("no name")}
	}
	list := strings.TrimSuffix(path, filepath.Ext(path)) + listSuffix
	return fmt.Errorf("%s is the configuration of one plugin, and none can be chained to it: write it as a list, %s, with that plugin in its plugins, and remove this file", path, list)
}

// read reads a regular file of a bounded size. It does not wait for the writer of a FIFO.
func read(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, invalidError{err}
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, invalidError{fmt.Errorf("%s: not a file", path)}
	case info.Size() > maxConfig:
		return nil, fmt.Errorf("%s is larger than %d bytes: no network configuration", path, maxConfig)
	}
	return io.ReadAll(io.LimitReader(f, maxConfig+1))
}
