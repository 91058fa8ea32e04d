package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables/kernel"
	"istio-pod-network-controller/sidecars"
)

// askTimeout bounds one question to a proxy.
const askTimeout = time.Second

// asker asks proxies whether they are ready, from inside their pods' network namespaces.
type asker struct {
	namespaces kernel.Namespaces
	homes      sidecars.Homes
}

// Ask returns nil if the proxy of an epoch is ready, and sidecars.ErrPortTaken if another user listens on its ports. During a handover old
// and new proxy share their ports, so with a handover the socket that only this epoch has must answer as well.
func (a asker) Ask(ctx context.Context, s podnet.Sandbox, p *sidecars.Profile, epoch uint32) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if err := a.checkPorts(ctx, s, p); err != nil {
		return err
	}
	if p.Spec.Handover == v1alpha1.HandoverHAProxy {
		if err := a.askSocket(ctx, a.homes.HandoverSocket(s, epoch)); err != nil {
			return err
		}
	}
	r := p.Readiness(epoch)
	switch {
	case r.Socket != "":
		return a.askSocket(ctx, filepath.Join(a.homes.RunDirectory(s), r.Socket))
	case r.TCPPort != 0:
		conn, err := a.dial(ctx, s, r.TCPPort)
		if err != nil {
			return err
		}
		return conn.Close()
	case r.HTTPGet != nil:
		return a.askHTTP(ctx, s, r.HTTPGet)
	}
	return errors.New("the profile has no readiness")
}

// askSocket connects to a unix socket.
func (a asker) askSocket(ctx context.Context, path string) error {
	conn, err := sidecars.DialSocket(ctx, path)
	if err != nil {
		return err
	}
	return conn.Close()
}

// dial connects to a port of the pod's loopback.
func (a asker) dial(ctx context.Context, s podnet.Sandbox, port int32) (net.Conn, error) {
	conn, err := kernel.Visit(ctx, a.namespaces, s.Place(), func(_ context.Context, ns *netns.NS) (net.Conn, error) {
		fd, err := ns.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return nil, err
		}
		return connect(ctx, fd, port)
	})
	if err != nil {
		return nil, fmt.Errorf("connect to the proxy's port %d: %w", port, err)
	}
	return conn, nil
}

// connect connects a socket to a port of 127.0.0.1, and closes it if that fails.
func connect(ctx context.Context, fd int, port int32) (net.Conn, error) {
	err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(port), Addr: [4]byte{127, 0, 0, 1}})
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return nil, errors.Join(err, unix.Close(fd))
	}
	deadline, _ := ctx.Deadline()
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, int(time.Until(deadline)/time.Millisecond)+1)
	if err == nil && n == 0 {
		err = context.DeadlineExceeded
	}
	if err == nil {
		var refused int
		if refused, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err == nil && refused != 0 {
			err = unix.Errno(refused)
		}
	}
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	file := os.NewFile(uintptr(fd), "proxy")
	conn, err := net.FileConn(file)
	return conn, errors.Join(err, file.Close())
}

func (a asker) askHTTP(ctx context.Context, s podnet.Sandbox, page *v1alpha1.HTTPGet) error {
	if page.Socket != "" {
		return get(ctx, "http://localhost"+page.Path, func(ctx context.Context) (net.Conn, error) {
			return sidecars.DialSocket(ctx, filepath.Join(a.homes.RunDirectory(s), page.Socket))
		})
	}
	url := "http://127.0.0.1:" + strconv.Itoa(int(page.Port)) + page.Path
	return get(ctx, url, func(ctx context.Context) (net.Conn, error) { return a.dial(ctx, s, page.Port) })
}
