package sidecars

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// DialSocket connects to a unix socket in a directory that a proxy can write to. It does not follow a link in the socket's place, which could
// lead anywhere. It connects by the descriptor's path in /proc, since path may be longer than a socket's address can be.
func DialSocket(ctx context.Context, path string) (net.Conn, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("look for the proxy's socket %s: %w", filepath.Base(path), err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	var info unix.Stat_t
	if err := unix.Fstat(fd, &info); err != nil {
		return nil, fmt.Errorf("look at the proxy's socket %s: %w", filepath.Base(path), err)
	}
	if info.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, fmt.Errorf("%s of the proxy is not a socket", filepath.Base(path))
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", "/proc/self/fd/"+strconv.Itoa(fd))
	if err != nil {
		return nil, fmt.Errorf("connect to the proxy's socket %s: %w", filepath.Base(path), err)
	}
	return conn, nil
}
