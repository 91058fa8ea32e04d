package kerneltest

import (
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// NetworkOrder returns the number whose bytes in memory are those of n in network order, and the other way round: htons and ntohs of C.
func NetworkOrder(n uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, n))
}

// originalDst returns the destination that the client dialled: from conntrack, or the local address of a direct connection.
func originalDst(c *net.TCPConn) netip.AddrPort {
	local := c.LocalAddr().(*net.TCPAddr).AddrPort()
	raw, err := c.SyscallConn()
	if err != nil {
		return local
	}
	dst := local
	_ = raw.Control(func(fd uintptr) {
		if local.Addr().Unmap().Is4() {
			// The kernel's struct sockaddr_in in the room of a struct that x/sys has a getter for.
			if m, err := unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, unix.SO_ORIGINAL_DST); err == nil {
				dst = netip.AddrPortFrom(netip.AddrFrom4([4]byte(m.Multiaddr[4:8])), uint16(m.Multiaddr[2])<<8|uint16(m.Multiaddr[3]))
			}
			return
		}
		if m, err := unix.GetsockoptIPv6MTUInfo(int(fd), unix.SOL_IPV6, unix.SO_ORIGINAL_DST); err == nil {
			dst = netip.AddrPortFrom(netip.AddrFrom16(m.Addr.Addr), NetworkOrder(m.Addr.Port))
		}
	})
	return netip.AddrPortFrom(dst.Addr().Unmap(), dst.Port())
}
