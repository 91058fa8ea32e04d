package agent

import (
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// sharedPort lets the old and the new agent of an update listen on one port of the node at the same time; the kernel shares
// the connections out between them.
func sharedPort() net.ListenConfig {
	return net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) error {
		var refused error
		err := conn.Control(func(fd uintptr) { refused = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
		return errors.Join(err, refused)
	}}
}
