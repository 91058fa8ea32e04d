package main

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// errShared is the answer where mounts and processes would stay on the machine if this program were killed.
var errShared = errors.New("not in namespaces of its own: start this by `hack/bench.sh scale`")

// alone returns an error unless this program is the first process of a PID namespace, and has mounts of its own with it: both end
// with it.
func alone() error {
	if os.Getpid() != 1 {
		return errShared
	}
	return nil
}

func bind(from, to string) error {
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s on %s: %w", from, to, err)
	}
	return nil
}

// memory makes a directory in memory, over the one that may be there.
func memory(path string) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", path, "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount memory on %s: %w", path, err)
	}
	return nil
}

func unbind(path string) error {
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	return nil
}
