package shared

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/sidecars/home"
)

const (
	// askTimeout bounds one question to the proxy, and maxVersion what is read of its answer.
	askTimeout = 2 * time.Second
	maxVersion = 256
	maxHeaders = 4 << 10
)

// answer is what a proxy says about itself: the version of its configuration. The kernel says the group of the process that listens.
type answer struct {
	version string
	gid     int64
}

// ask returns what a pod of the proxy answers on its socket.
func (d directory) ask(ctx context.Context, pod string) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	own, err := d.own(pod)
	if err != nil {
		return answer{}, err
	}
	defer own.Close() //nolint:errcheck // nothing was written
	// Not by the transport, which at the end of ctx would return before its dial, and that would use a descriptor that is closed, or another file's.
	conn, listener, err := dial(ctx, fmt.Sprintf("/proc/self/fd/%d/%s", own.Fd(), versionName))
	if err != nil {
		return answer{}, fmt.Errorf("ask the proxy for its version: %w", err)
	}
	defer conn.Close() //nolint:errcheck // the transport has closed it, unless it did not come to that
	transport := &http.Transport{
		DisableKeepAlives: true, MaxResponseHeaderBytes: maxHeaders,
		DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil },
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://proxy/", http.NoBody)
	if err != nil {
		return answer{}, fmt.Errorf("ask the proxy for its version: %w", err)
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return answer{}, fmt.Errorf("ask the proxy for its version: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, maxVersion))
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return answer{}, fmt.Errorf("ask the proxy for its version: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return answer{}, fmt.Errorf("ask the proxy for its version: status %d", response.StatusCode)
	}
	return answer{version: strings.TrimSpace(string(text)), gid: listener}, nil
}

// dial connects to the proxy's socket. gid is the group of the listening process, at the time when it began to listen.
func dial(ctx context.Context, path string) (conn net.Conn, gid int64, err error) {
	conn, err = home.DialSocket(ctx, path)
	if err != nil {
		return nil, 0, err
	}
	if gid, err = peerGID(conn); err != nil {
		return nil, 0, errors.Join(fmt.Errorf("find out who listens on %s: %w", path, err), conn.Close())
	}
	return conn, gid, nil
}

func peerGID(conn net.Conn) (gid int64, err error) {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	var errPeer error
	err = raw.Control(func(fd uintptr) { peer, errPeer = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, errPeer); err != nil {
		return 0, err
	}
	return int64(peer.Gid), nil
}
