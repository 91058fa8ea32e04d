package redirection

import (
	"errors"
	"io"
	"syscall"
	"unsafe"
)

// Limits of calls that may wait. On lo an answer takes microseconds; the rest is for a loaded node. A lost connection is tried again
// sooner than the kernel would.
const (
	connectMicroseconds = 100_000
	receiveSeconds      = 1
)

// originalDst is SO_ORIGINAL_DST of IPv4 and IP6T_SO_ORIGINAL_DST of IPv6.
const originalDst = 80

// socket is a TCP socket whose calls have time limits.
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

// close closes the descriptor.
func (s socket) close() { _ = syscall.Close(int(s)) }

func (s socket) listen() error { return syscall.Listen(int(s), 8) }

// connect connects over lo only. An IPv6 address exists a moment before its routes; until then a packet to it could leave the
// pod.
func (s socket) connect(to syscall.Sockaddr) error {
	// Before Linux 5.7 this needs a privilege. There, the source address protects: no router forwards packets from ::1.
	if err := syscall.BindToDevice(int(s), "lo"); err != nil && !errors.Is(err, syscall.EPERM) {
		return err
	}
	err := syscall.Connect(int(s), to)
	if errors.Is(err, syscall.EINPROGRESS) {
		// connect returns EINPROGRESS when its time is up.
		return syscall.ETIMEDOUT
	}
	return err
}

// accept returns the next connection and its source port.
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

// local returns the socket's port.
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

// OriginalDst returns the destination of a connection of an address family before redirection, from connection tracking.
func OriginalDst(fd, domain int) (ip []byte, port int, err error) {
	if domain == syscall.AF_INET {
		// The kernel writes a struct sockaddr_in: family, port, address. syscall has no getter for it; this one's struct is large
		// enough.
		m, err := syscall.GetsockoptIPv6Mreq(fd, syscall.IPPROTO_IP, originalDst)
		if err != nil {
			return nil, 0, err
		}
		return m.Multiaddr[4:8], int(m.Multiaddr[2])<<8 | int(m.Multiaddr[3]), nil
	}
	m, err := syscall.GetsockoptIPv6MTUInfo(fd, syscall.IPPROTO_IPV6, originalDst)
	if err != nil {
		return nil, 0, err
	}
	network := *(*[2]byte)(unsafe.Pointer(&m.Addr.Port)) //nolint:gosec // a number in network order; encoding/binary needs reflection
	return m.Addr.Addr[:], int(network[0])<<8 | int(network[1]), nil
}
