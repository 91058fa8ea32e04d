// Package originaldst asks the kernel of a pod where a connection led before redirection. It is for Linux; the commands that start the pods are not.
package originaldst

import (
	"net"
	"net/netip"
	"syscall"

	"istio-pod-network-controller/internal/redirection"
)

// Of returns the destination that the client dialled: from connection tracking, or the local address of a connection that was not
// redirected.
func Of(c net.Conn) netip.AddrPort {
	local, ok := c.LocalAddr().(*net.TCPAddr)
	tcp, isTCP := c.(*net.TCPConn)
	if !ok || !isTCP {
		return netip.AddrPort{}
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return netip.AddrPort{}
	}
	addr, port, domain := local.AddrPort().Addr().Unmap(), local.AddrPort().Port(), syscall.AF_INET6
	if addr.Is4() {
		domain = syscall.AF_INET
	}
	_ = raw.Control(func(fd uintptr) { // the connection may be closed, then the local address stays
		ip, p, err := redirection.OriginalDst(int(fd), domain)
		if a, ok := netip.AddrFromSlice(ip); err == nil && ok {
			addr, port = a.Unmap(), uint16(p)
		}
	})
	return netip.AddrPortFrom(addr.WithZone(""), port)
}
