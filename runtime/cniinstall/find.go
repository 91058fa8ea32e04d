package cniinstall

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrNoNetwork says that there is no network configuration to be chained to yet.
var ErrNoNetwork = errors.New("no valid network configuration")

const (
	listSuffix = ".conflist"
	// maxConfig bounds a configuration that is read; they are a few kilobytes.
	maxConfig = 8 << 20
)

// extensions are those of the files that runtimes read.
func extensions() []string { return []string{".conf", listSuffix, ".json"} }

// errNotPlain is a directory entry that is no file: runtimes could not read it either.
var errNotPlain = errors.New("not a file")

// network is the configuration that the runtime uses, as read.
type network struct {
	path string // without symbolic links
	data []byte
	// list is what the file says, or, where the file is of one plugin only, what a runtime makes of it.
	list conflist
	// single is the path as listed of a file of one plugin, empty for lists.
	single string
}

// find gives the configuration that runtimes choose: the first in lexical order that is valid. Runtimes differ in what
// they do where an invalid one comes before it (CRI-O goes on, containerd waits until it is mended); both end up there. Lists
// that we derived from a file of one plugin are passed over: that file is the configuration.
func find(dir, kind string) (network, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return network{}, fmt.Errorf("%w in %s: no such directory", ErrNoNetwork, dir)
	}
	if err != nil {
		return network{}, err
	}
	var why []string
	for _, e := range entries {
		if e.IsDir() || !slices.Contains(extensions(), filepath.Ext(e.Name())) {
			continue
		}
		if _, ours := derivedFrom(filepath.Join(dir, e.Name()), kind); ours {
			continue
		}
		n, err := load(filepath.Join(dir, e.Name()))
		var invalid invalidError
		switch {
		case errors.As(err, &invalid):
			why = append(why, fmt.Sprintf("%s: %v", e.Name(), err))
		case err != nil:
			return network{}, err
		default:
			return n, nil
		}
	}
	if len(why) == 0 {
		return network{}, fmt.Errorf("%w in %s", ErrNoNetwork, dir)
	}
	return network{}, fmt.Errorf("%w in %s: %s", ErrNoNetwork, dir, strings.Join(why, "; "))
}

// invalidError is why a file is none that a runtime would use.
type invalidError struct{ error }

func (e invalidError) Unwrap() error { return e.error }

// load reads one file. A symbolic link is followed, and what it leads to is what will be written: the link stays.
func load(path string) (network, error) {
	target, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, gone := os.Lstat(path); gone != nil {
			return network{}, invalidError{err}
		}
		return network{}, fmt.Errorf("%s is a symbolic link to what cannot be seen from here: mount its target's directory, too", path)
	}
	if err != nil {
		return network{}, err
	}
	data, err := read(target)
	if errors.Is(err, errNotPlain) || errors.Is(err, fs.ErrNotExist) {
		return network{}, invalidError{err}
	}
	if err != nil {
		return network{}, err
	}
	n := network{path: target, data: data}
	text := data
	if !strings.HasSuffix(path, listSuffix) {
		n.single = path
		if text, err = fromConf(data); err != nil {
			return network{}, invalidError{err}
		}
	}
	n.list, err = parseList(text)
	if errors.Is(err, errElsewhere) {
		beside := filepath.Join(filepath.Dir(path), n.list.name)
		if _, there := os.Stat(beside); there == nil {
			return network{}, fmt.Errorf("%s keeps its plugins in %s, where none is put by us: list them in the file", path, beside)
		}
	}
	if err != nil {
		return network{}, invalidError{err}
	}
	return n, nil
}

// read reads a plain file of a bounded size. It does not wait for the writer of a FIFO.
func read(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) //nolint:gosec // in the directory that we were given
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: %w", path, errNotPlain)
	case info.Size() > maxConfig:
		return nil, fmt.Errorf("%s is larger than %d bytes: no network configuration", path, maxConfig)
	}
	return io.ReadAll(io.LimitReader(f, maxConfig+1))
}
