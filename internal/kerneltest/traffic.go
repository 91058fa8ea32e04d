package kerneltest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
)

// Owner is who a socket belongs to, as the kernel's owner matches see it.
type Owner struct{ UID, GID int }

// The owners of the tests' sockets.
var (
	App   = Owner{1000, 1000} //nolint:gochecknoglobals // two constants of a struct type
	Proxy = Owner{1337, 1337} //nolint:gochecknoglobals // as above
)

// Answer is what a dial found out: who accepted it, and which address it believed it had reached.
type Answer struct {
	Banner string
	Dst    netip.AddrPort
}

// Listen opens TCP listeners on ports of every address of ns. Each answers a connection with "BANNER:PORT DST", DST being
// the destination before any redirect, and closes it.
func Listen(t testing.TB, ns *netns.NS, owner Owner, banner string, ports ...uint16) {
	t.Helper()
	for _, port := range ports {
		var l net.Listener
		must(t, as(ns, owner, func() (err error) {
			l, err = net.Listen("tcp", fmt.Sprintf("[::]:%d", port))
			return err
		}))
		t.Cleanup(func() { _ = l.Close() })
		go serve(l, fmt.Sprintf("%s:%d", banner, port))
	}
}

func serve(l net.Listener, banner string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = fmt.Fprintf(c, "%s %s", banner, originalDst(c.(*net.TCPConn)))
		_ = c.Close()
	}
}

// originalDst is where the client wanted to go: what conntrack remembers, or the local address of a direct connection.
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
			p := m.Addr.Port
			dst = netip.AddrPortFrom(netip.AddrFrom16(m.Addr.Addr), p<<8|p>>8)
		}
	})
	return netip.AddrPortFrom(dst.Addr().Unmap(), dst.Port())
}

// Dial connects from ns as owner to dst and gives the answer, from address src where it is not empty.
func Dial(ctx context.Context, ns *netns.NS, owner Owner, src, dst string) (Answer, error) {
	var answer Answer
	err := as(ns, owner, func() error {
		d := net.Dialer{Timeout: 2 * time.Second}
		if src != "" {
			d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(src)}
		}
		c, err := d.DialContext(ctx, "tcp", dst)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
			return err
		}
		b, err := io.ReadAll(c)
		if err != nil {
			return err
		}
		banner, where, _ := strings.Cut(string(b), " ")
		answer.Banner = banner
		answer.Dst, err = netip.ParseAddrPort(where)
		return err
	})
	return answer, err
}

// as runs f inside ns on a thread whose new sockets belong to owner.
func as(ns *netns.NS, owner Owner, f func() error) error {
	return ns.Do(func() error {
		// Group first: a thread that is not root any more may not change it. These set the calling thread only.
		if _, _, errno := syscall.RawSyscall(unix.SYS_SETFSGID, uintptr(owner.GID), 0, 0); errno != 0 {
			return errno
		}
		if _, _, errno := syscall.RawSyscall(unix.SYS_SETFSUID, uintptr(owner.UID), 0, 0); errno != 0 {
			return errno
		}
		return f()
	})
}
