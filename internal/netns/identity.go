package netns

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Identity identifies a namespace for ever: the kernel re-uses the inode of a namespace that is gone, but never a cookie.
// Compare two with ==. The zero value is no namespace's.
type Identity struct {
	ID     ID
	Cookie uint64 // 0 if the kernel has none (before Linux 5.14)
}

// Unique reports whether no other namespace can ever have this identity. Without a cookie, a later one may have the same inode.
func (i Identity) Unique() bool { return i.Cookie != 0 }

// Identity returns the namespace's identity. The first call asks a socket inside it for the cookie.
func (n *NS) Identity() (Identity, error) {
	if n.cookie != 0 {
		return Identity{ID: n.id, Cookie: n.cookie}, nil
	}
	conn, err := n.Netlink(unix.NETLINK_ROUTE) // every kernel has it, and a check of a pod asks it for addresses as well
	if err != nil {
		return Identity{}, fmt.Errorf("identify network namespace: %w", err)
	}
	id, err := n.IdentityBy(conn.Fd())
	n.cookie = id.Cookie
	return id, err
}

// IdentityBy is Identity for a caller that already has a socket inside the namespace.
func (n *NS) IdentityBy(fd int) (Identity, error) {
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil && !errors.Is(err, unix.ENOPROTOOPT) {
		return Identity{}, fmt.Errorf("ask for the network namespace's cookie: %w", err)
	}
	return Identity{ID: n.id, Cookie: cookie}, nil
}
