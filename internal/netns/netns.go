// Package netns opens, identifies, guards and enters network namespaces. It is the only place that moves a thread between
// namespaces.
package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/rawnetlink"
)

// ID identifies a namespace while it exists, whatever path leads to it.
type ID struct{ Dev, Ino uint64 }

// NS is an open network namespace. Close it when the call ends: an open descriptor keeps a deleted pod's namespace alive.
type NS struct {
	fd     int // -1 after Close
	id     ID
	cookie uint64 // 0 until Identity has asked for it
	thread int    // the thread that a Visit has moved into the namespace; 0 for none
	conns  map[int]*rawnetlink.Conn
}

// Open opens the network namespace that path leads to. It refuses anything else (a plain file, a socket, another kind of namespace)
// by what the kernel says of the open descriptor, not by the path. If path leads nowhere, the error is podnet.ErrGone.
func Open(path string) (*NS, error) {
	// Without O_NONBLOCK, opening a FIFO at the path would block for ever.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ESRCH) {
		return nil, fmt.Errorf("open %q: %w", path, podnet.ErrGone)
	}
	if err != nil {
		return nil, fmt.Errorf("open %q: %w", path, err)
	}
	n := &NS{fd: fd}
	if n.id, err = identify(fd); err != nil {
		return nil, errors.Join(fmt.Errorf("open %q: %w", path, err), n.Close())
	}
	return n, nil
}

// New makes a fresh namespace that no path leads to. It exists as long as the descriptor is open.
func New() (n *NS, err error) {
	here, err := openOwn()
	if err != nil {
		return nil, err
	}
	err = (&NS{fd: here}).Inside(func() error { // the thread goes back
		h, err := netns.New()
		if err != nil {
			return fmt.Errorf("make network namespace: %w", err)
		}
		n = &NS{fd: int(h)}
		n.id, err = identify(int(h))
		return err
	})
	return n, err
}

// ID returns the namespace's ID.
func (n *NS) ID() ID { return n.id }

// Identity returns the namespace's identity. The first call asks a socket inside it for the cookie, which is 0 if the kernel has none.
func (n *NS) Identity() (podnet.Identity, error) {
	if n.cookie == 0 {
		conn, err := n.Netlink(unix.NETLINK_ROUTE) // every kernel has it, and a check of a pod asks it for addresses as well
		if err == nil {
			n.cookie, err = unix.GetsockoptUint64(conn.Fd(), unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		}
		if err != nil && !errors.Is(err, unix.ENOPROTOOPT) {
			return podnet.Identity{}, fmt.Errorf("identify network namespace: %w", err)
		}
	}
	return podnet.Identity{Dev: n.id.Dev, Ino: n.id.Ino, Cookie: n.cookie}, nil
}

// Fd returns the open descriptor, which is valid until Close.
func (n *NS) Fd() int { return n.fd }

// Path returns a path to the namespace that is valid while n is open, and for this process only.
func (n *NS) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.Fd()) }

// Close closes what Netlink has opened, and then the descriptor: closing a netfilter socket waits until the kernel has finished the nftables
// transaction that is under way in the namespace, and a process of the pod can make one after the other. A second call is an error.
func (n *NS) Close() error {
	for _, c := range n.conns {
		c.Close()
	}
	n.conns = nil
	fd := n.fd
	n.fd = -1
	if err := unix.Close(fd); err != nil {
		return fmt.Errorf("close network namespace: %w", err)
	}
	return nil
}

// Gone reports whether a path has gone, or was a namespace's name and is an ordinary file since it was unmounted.
func Gone(path string) bool {
	var on unix.Statfs_t
	err := unix.Statfs(path, &on)
	return errors.Is(err, fs.ErrNotExist) || err == nil && on.Type != unix.NSFS_MAGIC
}

func identify(fd int) (ID, error) {
	var on unix.Statfs_t
	if err := unix.Fstatfs(fd, &on); err != nil {
		return ID{}, fmt.Errorf("statfs: %w", err)
	}
	// A namespace that was mounted on the host after our mount namespace was copied appears as the empty file that it was mounted on.
	if on.Type != unix.NSFS_MAGIC {
		return ID{}, errors.New("not a network namespace: not a file of the kernel's namespace filesystem")
	}
	kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	if err != nil {
		return ID{}, fmt.Errorf("ask for the namespace's type: %w", err)
	}
	if kind != unix.CLONE_NEWNET {
		return ID{}, fmt.Errorf("not a network namespace: a namespace of type %#x", kind)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return ID{}, fmt.Errorf("stat: %w", err)
	}
	return ID{Dev: st.Dev, Ino: st.Ino}, nil
}
