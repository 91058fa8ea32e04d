package agent

import (
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// sharedPort returns a configuration with SO_REUSEPORT: during an update the old and the new agent listen on the same port of the node,
// and the kernel distributes connections between them.
func sharedPort() net.ListenConfig {
	return net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) error {
		var errOption error
		err := conn.Control(func(fd uintptr) { errOption = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
		return errors.Join(err, errOption)
	}}
}
