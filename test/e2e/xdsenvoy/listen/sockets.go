package listen

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/test/e2e/xdsenvoy/upstream"
)

// open makes a listening socket that shares its port with those of the same user, and that takes connections to any address if it is transparent.
func open(ctx context.Context, address string, transparent bool) (net.Listener, error) {
	config := net.ListenConfig{Control: func(_, address string, raw syscall.RawConn) error {
		var failed error
		err := raw.Control(func(fd uintptr) {
			failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
			if transparent {
				failed = errors.Join(failed, upstream.Transparent(int(fd), address))
			}
		})
		return errors.Join(err, failed)
	}}
	// Without the family, package net would listen for both at the unspecified address of IPv6.
	network := "tcp4"
	if strings.HasPrefix(address, "[") {
		network = "tcp6"
	}
	l, err := config.Listen(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", address, err)
	}
	return l, nil
}

// originalTarget is where a redirected connection was going. A connection that was not redirected was going to this proxy.
func originalTarget(c *net.TCPConn) netip.AddrPort {
	target := unmap(c.LocalAddr())
	raw, err := c.SyscallConn()
	if err != nil {
		return target
	}
	_ = raw.Control(func(fd uintptr) {
		if target.Addr().Is4() {
			// The kernel's struct sockaddr_in, in the room of a struct that x/sys has a getter for.
			if m, err := unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, unix.SO_ORIGINAL_DST); err == nil {
				target = netip.AddrPortFrom(netip.AddrFrom4([4]byte(m.Multiaddr[4:8])), binary.BigEndian.Uint16(m.Multiaddr[2:4]))
			}
			return
		}
		if m, err := unix.GetsockoptIPv6MTUInfo(int(fd), unix.SOL_IPV6, unix.SO_ORIGINAL_DST); err == nil {
			var port [2]byte
			binary.NativeEndian.PutUint16(port[:], m.Addr.Port) // the field holds the bytes as they were on the wire
			target = netip.AddrPortFrom(netip.AddrFrom16(m.Addr.Addr), binary.BigEndian.Uint16(port[:]))
		}
	})
	return target
}

func unmap(a net.Addr) netip.AddrPort {
	p := a.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
}
