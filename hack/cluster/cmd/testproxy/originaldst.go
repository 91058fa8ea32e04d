package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// soOriginalDst is SO_ORIGINAL_DST and IP6T_SO_ORIGINAL_DST alike.
const soOriginalDst = 80

// originalDst is where a redirected connection was going. One that was not redirected was going to this proxy.
func originalDst(c *net.TCPConn) (netip.AddrPort, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("reach the socket: %w", err)
	}
	local, err := netip.ParseAddrPort(c.LocalAddr().String())
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("read the own address: %w", err)
	}
	var dst netip.AddrPort
	var asked error
	err = raw.Control(func(fd uintptr) {
		if local.Addr().Unmap().Is4() {
			dst, asked = originalDst4(int(fd))
		} else {
			dst, asked = originalDst6(int(fd))
		}
	})
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("reach the socket: %w", err)
	}
	if errors.Is(asked, unix.ENOENT) || errors.Is(asked, unix.ENOPROTOOPT) {
		return local, nil // the kernel tracks no connection: no rule has changed its destination
	}
	if asked != nil {
		return netip.AddrPort{}, fmt.Errorf("ask for the original destination: %w", asked)
	}
	return dst, nil
}

// originalDst4 borrows a call that returns 16 bytes, the size of an IPv4 socket address.
func originalDst4(fd int) (netip.AddrPort, error) {
	m, err := unix.GetsockoptIPv6Mreq(fd, unix.SOL_IP, soOriginalDst)
	if err != nil {
		return netip.AddrPort{}, err
	}
	b := m.Multiaddr
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), binary.BigEndian.Uint16(b[2:4])), nil
}

// originalDst6 borrows a call whose result starts with an IPv6 socket address.
func originalDst6(fd int) (netip.AddrPort, error) {
	m, err := unix.GetsockoptIPv6MTUInfo(fd, unix.SOL_IPV6, soOriginalDst)
	if err != nil {
		return netip.AddrPort{}, err
	}
	var port [2]byte
	binary.NativeEndian.PutUint16(port[:], m.Addr.Port) // the field holds the bytes as they were on the wire
	return netip.AddrPortFrom(netip.AddrFrom16(m.Addr.Addr), binary.BigEndian.Uint16(port[:])), nil
}
