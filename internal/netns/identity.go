package netns

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/podnet"
)

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
