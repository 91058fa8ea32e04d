package kerneltest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	goruntime "runtime"
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
	App   = Owner{1000, 1000}
	Proxy = Owner{1337, 1337}
)

// Reply is an answer to Dial: the banner of the listener, and the destination before any redirect.
type Reply struct {
	Banner string
	Dst    netip.AddrPort
}

// Listen opens TCP listeners on ports of every address of ns. Each answers a connection with "BANNER:PORT DST", DST being
// the destination before any redirect, and closes it.
func Listen(t testing.TB, ns *netns.NS, owner Owner, banner string, ports ...uint16) {
	t.Helper()
	for _, port := range ports {
		go Answer(ListenTCP(t, ns, owner, false, fmt.Sprintf("[::]:%d", port)), fmt.Sprintf("%s:%d", banner, port))
	}
}

// ListenTCP opens a listener inside ns; a transparent one also takes connections to addresses that are not its own.
func ListenTCP(t testing.TB, ns *netns.NS, owner Owner, transparent bool, addr string) net.Listener {
	t.Helper()
	var l net.Listener
	config := net.ListenConfig{}
	if transparent {
		config.Control = Option(unix.SOL_IP, unix.IP_TRANSPARENT)
	}
	must(t, As(ns, owner, func() (err error) {
		l, err = config.Listen(t.Context(), "tcp", addr)
		return err
	}))
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// Option returns a Control, of a dialer or listener, that switches an option of the socket on before it is bound.
func Option(level, name int) func(network, addr string, raw syscall.RawConn) error {
	return func(_, _ string, raw syscall.RawConn) error {
		var err error
		errControl := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, name, 1) })
		return errors.Join(err, errControl)
	}
}

// Answer accepts connections until the listener is closed, and answers each with the banner and its destination.
func Answer(l net.Listener, banner string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = fmt.Fprintf(c, "%s %s", banner, originalDst(c.(*net.TCPConn)))
		_ = c.Close()
	}
}

// ListenUDP answers every datagram to addr with the banner.
func ListenUDP(t testing.TB, ns *netns.NS, owner Owner, addr, banner string) {
	t.Helper()
	var c net.PacketConn
	must(t, As(ns, owner, func() (err error) {
		network := "udp4"
		if strings.HasPrefix(addr, "[") {
			network = "udp6"
		}
		// One listener may have a specific address and another one the wildcard, on the same port.
		config := net.ListenConfig{Control: Option(unix.SOL_SOCKET, unix.SO_REUSEADDR)}
		c, err = config.ListenPacket(t.Context(), network, addr)
		return err
	}))
	t.Cleanup(func() { _ = c.Close() })
	go func() {
		buf := make([]byte, 64)
		for {
			_, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = c.WriteTo([]byte(banner+" "+c.LocalAddr().String()), from)
		}
	}()
}

// Dial connects from ns as owner to dst and returns the answer. If src is not empty, it is the local address, with a port or without one.
func Dial(ctx context.Context, ns *netns.NS, owner Owner, src, dst string) (Reply, error) {
	text, err := ask(ctx, ns, owner, "tcp", src, dst)
	if err != nil {
		return Reply{}, err
	}
	banner, where, _ := strings.Cut(text, " ")
	addr, err := netip.ParseAddrPort(where)
	return Reply{Banner: banner, Dst: addr}, err
}

// Ask sends a datagram, or connects, and returns the banner of the answer.
func Ask(ctx context.Context, ns *netns.NS, owner Owner, network, src, dst string) (banner string, err error) {
	text, err := ask(ctx, ns, owner, network, src, dst)
	banner, _, _ = strings.Cut(text, " ")
	return banner, err
}

func ask(ctx context.Context, ns *netns.NS, owner Owner, network, src, dst string) (text string, err error) {
	err = As(ns, owner, func() error {
		d := net.Dialer{Timeout: 2 * time.Second}
		if src != "" {
			d.LocalAddr = localAddr(src)
		}
		c, err := d.DialContext(ctx, network, dst)
		if err != nil {
			return err
		}
		defer c.Close()
		deadline, ok := ctx.Deadline()
		if !ok {
			deadline = time.Now().Add(2 * time.Second)
		}
		if err := c.SetDeadline(deadline); err != nil {
			return err
		}
		text, err = exchange(c, network)
		return err
	})
	return text, err
}

// localAddr reads an address, with a port or without one.
func localAddr(text string) net.Addr {
	if a, err := netip.ParseAddrPort(text); err == nil {
		return net.TCPAddrFromAddrPort(a)
	}
	return &net.TCPAddr{IP: net.ParseIP(text)}
}

func exchange(c net.Conn, network string) (string, error) {
	if network == "tcp" {
		b, err := io.ReadAll(c)
		if err == nil && len(b) == 0 {
			err = io.ErrUnexpectedEOF
		}
		return string(b), err
	}
	if _, err := c.Write([]byte("?")); err != nil {
		return "", err
	}
	buf := make([]byte, 128)
	n, err := c.Read(buf)
	return string(buf[:n]), err
}

// As runs f inside ns on a thread whose new sockets belong to owner.
func As(ns *netns.NS, owner Owner, f func() error) error {
	return ns.Inside(func() error {
		// Group first: a thread that is not root any more may not change it. These set the calling thread only.
		goruntime.LockOSThread() // for ever: the thread ends with this goroutine
		if _, _, errno := syscall.RawSyscall(unix.SYS_SETFSGID, uintptr(owner.GID), 0, 0); errno != 0 {
			return errno
		}
		if _, _, errno := syscall.RawSyscall(unix.SYS_SETFSUID, uintptr(owner.UID), 0, 0); errno != 0 {
			return errno
		}
		return f()
	})
}

// Echo sends a banner on each connection of a listener, and then sends back what it receives, until the listener is closed.
func Echo(l net.Listener, banner string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			_, _ = fmt.Fprintln(c, banner)
			_, _ = io.Copy(c, c)
		}()
	}
}
