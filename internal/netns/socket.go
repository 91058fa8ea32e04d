package netns

import (
	"errors"
	"fmt"
	"os"
	goruntime "runtime"
	"sync"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/rawnetlink"
)

// own is this process's own network namespace, which the main thread never leaves. It is opened once, since threads return to it often.
var own struct {
	sync.Mutex
	fd *int
}

// openOwn returns a descriptor of this process's own network namespace. It stays open.
func openOwn() (fd int, err error) {
	own.Lock()
	defer own.Unlock()
	if own.fd == nil {
		if fd, err = unix.Open("/proc/self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return -1, fmt.Errorf("open this process's own network namespace: %w", err)
		}
		own.fd = &fd
	}
	return *own.fd, nil
}

// Socket opens a socket inside the namespace. The caller must close it before the call ends, because it keeps the namespace
// alive.
func (n *NS) Socket(domain, kind, protocol int) (fd int, err error) {
	err = n.Inside(func() (err error) {
		fd, err = unix.Socket(domain, kind|unix.SOCK_CLOEXEC, protocol)
		return err
	})
	if err != nil {
		return -1, err
	}
	return fd, nil
}

// Netlink returns a connection to the kernel's part of the namespace for a protocol (unix.NETLINK_...). The first call opens it, and it is
// open until Close. Use it from one goroutine at a time, on a thread inside the namespace.
func (n *NS) Netlink(protocol int) (conn *rawnetlink.Conn, err error) {
	if conn := n.conns[protocol]; conn != nil {
		return conn, nil
	}
	err = n.Inside(func() (err error) {
		conn, err = rawnetlink.Open(protocol)
		return err
	})
	if err != nil {
		return nil, err
	}
	if n.conns == nil {
		n.conns = map[int]*rawnetlink.Conn{}
	}
	n.conns[protocol] = conn
	return conn, nil
}

// Inside runs f on a thread inside the namespace. f must leave everything else of its thread as it was, and start no goroutines: they would run
// in another namespace. Within a Visit, f runs on the calling goroutine, whose thread is inside already.
func (n *NS) Inside(f func() error) error {
	if n.onThread() {
		return Contain(f)
	}
	return n.runOnOther(f)
}

// onThread reports whether the calling goroutine is on the thread that a Visit has moved into the namespace.
func (n *NS) onThread() bool { return n.thread != 0 && n.thread == unix.Gettid() }

// runOnOther is runInside on another goroutine.
func (n *NS) runOnOther(f func() error) error {
	done := make(chan error, 1)
	go func() {
		err := errors.New("the goroutine was ended from inside")
		defer func() { done <- err }()
		err = n.runInside(f)
	}()
	return <-done
}

// runInside moves the calling goroutine's thread into the namespace, calls f, and moves it back. If that fails, the goroutine stays locked
// to the thread, which ends with it. The main thread is not moved, since /proc/self shows it: another one is.
func (n *NS) runInside(f func() error) error {
	goruntime.LockOSThread()
	if unix.Gettid() == os.Getpid() {
		defer goruntime.UnlockOSThread()
		return n.runOnOther(f)
	}
	returned, err := n.enterAndReturn(f)
	if returned {
		goruntime.UnlockOSThread()
	}
	return err
}

// enterAndReturn calls f inside the namespace and reports whether the thread is back in its own namespace.
func (n *NS) enterAndReturn(f func() error) (returned bool, err error) {
	here, err := openOwn()
	if err != nil {
		return true, err
	}
	if err := netns.Set(netns.NsHandle(n.Fd())); err != nil {
		return true, fmt.Errorf("enter network namespace: %w", err)
	}
	err = Contain(f)
	if back := netns.Set(netns.NsHandle(here)); back != nil {
		return false, errors.Join(err, fmt.Errorf("leave network namespace: %w", back))
	}
	return true, err
}
