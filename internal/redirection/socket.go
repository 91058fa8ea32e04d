package redirection

import (
	"errors"
	"io"
	"syscall"
	"unsafe"
)

// What bounds each call that may wait. All of it happens on lo, where an answer takes microseconds; the rest is for a node
// under load. A connection that was lost on its way is made anew sooner than the kernel would.
const (
	connectMicroseconds = 100_000
	receiveSeconds      = 1
)

// originalDst is SO_ORIGINAL_DST of IPv4 and IP6T_SO_ORIGINAL_DST of IPv6.
const originalDst = 80

// socket is a TCP socket, of which every call ends after a time.
type socket int

func open(domain int) (socket, error) {
	fd, err := syscall.Socket(domain, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	err = errors.Join(
		syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1),
		syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &syscall.Timeval{Sec: receiveSeconds}),
		syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_SNDTIMEO, &syscall.Timeval{Usec: connectMicroseconds}),
	)
	if domain == syscall.AF_INET6 {
		err = errors.Join(err, syscall.SetsockoptInt(fd, syscall.IPPROTO_IPV6, syscall.IPV6_V6ONLY, 1))
	}
	if err != nil {
		return 0, errors.Join(err, syscall.Close(fd))
	}
	return socket(fd), nil
}

// close gives the descriptor back; nothing that was written can be lost.
func (s socket) close() { _ = syscall.Close(int(s)) }

func (s socket) listen() error { return syscall.Listen(int(s), 8) }

// connect connects over lo and nothing else: an IPv6 address comes a moment before its routes, and until then a packet to it
// would leave the pod.
func (s socket) connect(to syscall.Sockaddr) error {
	// Before Linux 5.7 that takes a privilege. There it is the packet's source that stops it: no router forwards ::1.
	if err := syscall.BindToDevice(int(s), "lo"); err != nil && !errors.Is(err, syscall.EPERM) {
		return err
	}
	err := syscall.Connect(int(s), to)
	if errors.Is(err, syscall.EINPROGRESS) {
		// What connect says when its time is up.
		return syscall.ETIMEDOUT
	}
	return err
}

// accept gives the next connection, and the port that it comes from.
func (s socket) accept() (arrived socket, from int, err error) {
	fd, addr, err := syscall.Accept4(int(s), syscall.SOCK_CLOEXEC)
	for errors.Is(err, syscall.EINTR) || errors.Is(err, syscall.ECONNABORTED) {
		fd, addr, err = syscall.Accept4(int(s), syscall.SOCK_CLOEXEC)
	}
	if err != nil {
		return 0, 0, err
	}
	limit := &syscall.Timeval{Sec: receiveSeconds}
	if err := syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, limit); err != nil {
		return 0, 0, errors.Join(err, syscall.Close(fd))
	}
	return socket(fd), portOf(addr), nil
}

// local is the port that the socket has.
func (s socket) local() (int, error) {
	addr, err := syscall.Getsockname(int(s))
	return portOf(addr), err
}

func portOf(addr syscall.Sockaddr) int {
	switch a := addr.(type) {
	case *syscall.SockaddrInet4:
		return a.Port
	case *syscall.SockaddrInet6:
		return a.Port
	}
	return 0
}

func (s socket) read(n int) ([]byte, error) {
	buf := make([]byte, n)
	for got := 0; got < n; {
		more, err := syscall.Read(int(s), buf[got:])
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return nil, err
		case more == 0:
			return nil, io.ErrUnexpectedEOF
		default:
			got += more
		}
	}
	return buf, nil
}

// originalDst is where the client of a connection wanted to go, as connection tracking remembers it.
func (s socket) originalDst(domain int) (ip []byte, port int, err error) {
	if domain == syscall.AF_INET {
		// The kernel fills in a struct sockaddr_in: family, port, address. Of the structs that syscall can ask for this one has
		// room for it.
		m, err := syscall.GetsockoptIPv6Mreq(int(s), syscall.IPPROTO_IP, originalDst)
		if err != nil {
			return nil, 0, err
		}
		return m.Multiaddr[4:8], int(m.Multiaddr[2])<<8 | int(m.Multiaddr[3]), nil
	}
	m, err := syscall.GetsockoptIPv6MTUInfo(int(s), syscall.IPPROTO_IPV6, originalDst)
	if err != nil {
		return nil, 0, err
	}
	network := *(*[2]byte)(unsafe.Pointer(&m.Addr.Port)) //nolint:gosec // a number in network order; encoding/binary needs reflection
	return m.Addr.Addr[:], int(network[0])<<8 | int(network[1]), nil
}
