package connectivity

import (
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// originalDst returns the destination that the client dialled: from connection tracking, or the local address of a connection that was not
// redirected.
func originalDst(c *net.TCPConn) netip.AddrPort {
	local, ok := c.LocalAddr().(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	dst := plain(local.AddrPort())
	raw, err := c.SyscallConn()
	if err != nil {
		return dst
	}
	v4 := dst.Addr().Is4()
	_ = raw.Control(func(fd uintptr) { // the connection may be closed, then dst stays
		if v4 {
			// The kernel writes a struct sockaddr_in: family, port, address. x/sys has no getter for it; this one's struct is large enough.
			if m, err := unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, unix.SO_ORIGINAL_DST); err == nil {
				dst = netip.AddrPortFrom(netip.AddrFrom4([4]byte(m.Multiaddr[4:8])), uint16(m.Multiaddr[2])<<8|uint16(m.Multiaddr[3]))
			}
			return
		}
		if m, err := unix.GetsockoptIPv6MTUInfo(int(fd), unix.SOL_IPV6, unix.SO_ORIGINAL_DST); err == nil {
			network := m.Addr.Port // the bytes of a number in network order
			dst = netip.AddrPortFrom(netip.AddrFrom16(m.Addr.Addr), network<<8|network>>8)
		}
	})
	return plain(dst)
}

// plain returns an address without the IPv6 form of IPv4 and without a zone.
func plain(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}
