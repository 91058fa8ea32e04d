package netns

import (
	"errors"
	"fmt"
	"os"
	goruntime "runtime"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Socket opens a socket inside the namespace. The caller must close it before the call ends, because it keeps the namespace
// alive.
//
// Unlike Do it does not use up a thread: the thread goes back to its namespace, and is thrown away only if that fails.
func (n *NS) Socket(domain, kind, protocol int) (fd int, err error) {
	open := func() (err error) {
		fd, err = unix.Socket(domain, kind|unix.SOCK_CLOEXEC, protocol)
		return err
	}
	done := make(chan error, 1)
	go func() {
		goruntime.LockOSThread()
		if unix.Gettid() == os.Getpid() { // see inThread
			goruntime.UnlockOSThread()
			done <- n.Do(open)
			return
		}
		home, err := n.thereAndBack(open)
		if home {
			goruntime.UnlockOSThread()
		}
		done <- err
	}()
	if err = <-done; err != nil {
		return -1, err
	}
	return fd, nil
}

// thereAndBack calls f inside the namespace and reports whether the thread is back in its own namespace.
func (n *NS) thereAndBack(f func() error) (home bool, err error) {
	here, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return true, fmt.Errorf("open the thread's own network namespace: %w", err)
	}
	defer unix.Close(here) //nolint:errcheck // nothing was written that could be lost
	if err := netns.Set(netns.NsHandle(n.Fd())); err != nil {
		return true, fmt.Errorf("enter network namespace: %w", err)
	}
	err = f()
	if back := netns.Set(netns.NsHandle(here)); back != nil {
		return false, errors.Join(err, fmt.Errorf("leave network namespace: %w", back))
	}
	return true, err
}
