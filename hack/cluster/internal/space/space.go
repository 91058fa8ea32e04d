// Package space makes namespaces and runs code and programs in them. No other package of the kit moves a thread.
package space

import (
	"fmt"
	"os"
	goruntime "runtime"

	"golang.org/x/sys/unix"
)

// Kinds is a set of namespace types. They are entered through the process that holds them, all at once, so that no program ends up in one
// cluster's network and another one's mounts.
type Kinds int

// The control plane has a network of its own; the node has file system mounts and a host name of its own too.
const (
	ControlPlane Kinds = unix.CLONE_NEWNET
	Node         Kinds = unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWUTS
)

// Create makes new namespaces and runs f in them. They last as long as a process does that f starts.
func Create(kinds Kinds, f func() error) error {
	return onThread(func() error {
		if err := unix.Unshare(int(kinds)); err != nil {
			return fmt.Errorf("make namespaces: %w", err)
		}
		return f()
	})
}

// Do runs f in the namespaces of a process. What f starts stays in them; f itself must start no goroutine that relies on them.
func Do(pid int, kinds Kinds, f func() error) error {
	return onThread(func() error {
		if err := enter(pid, kinds); err != nil {
			return err
		}
		return f()
	})
}

// Exec replaces this program by another one in the namespaces of a process. It returns only on failure.
func Exec(pid int, kinds Kinds, path string, argv, env []string) error {
	goruntime.LockOSThread()
	dir, err := os.Getwd()
	if err != nil {
		dir = "/"
	}
	if err := enter(pid, kinds); err != nil {
		return err
	}
	// Entering a mount namespace leads to its root: go back to where the user was, if that exists there.
	if err := os.Chdir(dir); err != nil {
		if err := os.Chdir("/"); err != nil {
			return fmt.Errorf("leave %s: %w", dir, err)
		}
	}
	if err := unix.Exec(path, argv, env); err != nil {
		return fmt.Errorf("run %s: %w", path, err)
	}
	return nil
}

// enter changes the calling thread for good: callers lock it and never give it back.
func enter(pid int, kinds Kinds) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("find process %d, which holds the namespaces: %w", pid, err)
	}
	defer func() { _ = unix.Close(fd) }()
	if kinds&unix.CLONE_NEWNS != 0 {
		// The kernel refuses another mount namespace to a thread that shares its working directory with others.
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return fmt.Errorf("part from the other threads' working directory: %w", err)
		}
	}
	if err := unix.Setns(fd, int(kinds)); err != nil {
		return fmt.Errorf("enter the namespaces of process %d: %w", pid, err)
	}
	return nil
}

// onThread runs f on a thread that ends with it, so that no other goroutine ever meets its namespaces.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		goruntime.LockOSThread()
		done <- f()
	}()
	return <-done
}
