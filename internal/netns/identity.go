package netns

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Identity is a namespace's name for ever: the kernel gives an inode anew once its namespace is gone, a cookie never.
// Compare two with ==. The zero value is of no namespace.
type Identity struct {
	ID     ID
	Cookie uint64 // 0 where the kernel has none (before Linux 5.14)
}

// Unique reports whether no other namespace can ever have this identity. Without a cookie a later one can have the inode.
func (i Identity) Unique() bool { return i.Cookie != 0 }

// Identity asks the kernel for the namespace's identity, which takes a socket inside it for a moment.
func (n *NS) Identity() (Identity, error) {
	fd, err := n.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	if err != nil {
		return Identity{}, fmt.Errorf("identify network namespace: %w", err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written that could be lost
	return n.IdentityBy(fd)
}

// IdentityBy is Identity for who has a socket inside the namespace already.
func (n *NS) IdentityBy(fd int) (Identity, error) {
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil && !errors.Is(err, unix.ENOPROTOOPT) {
		return Identity{}, fmt.Errorf("ask for the network namespace's cookie: %w", err)
	}
	return Identity{ID: n.id, Cookie: cookie}, nil
}
