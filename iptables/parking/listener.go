package parking

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/kernel"
)

// listener is where a proxy listens.
type listener struct {
	port    uint16
	address netip.Addr
	// v6only reports whether a listener at an address of IPv6 takes connections of IPv6 alone.
	v6only bool
}

// listenersOf returns the listeners of a proxy in the namespace. It returns none if one of them lets nobody listen beside it.
func listenersOf(ctx context.Context, ns *netns.NS, spec iptables.Spec) (all []listener, err error) {
	err = kernel.EachListener(ctx, ns, func(s kernel.Socket) (more bool) {
		if s.UID == spec.ProxyUID && slices.Contains(spec.ProxyPorts(), s.Port) {
			all = append(all, listener{s.Port, s.Address, s.V6Only})
		}
		return len(all) <= mostListeners
	})
	if err != nil || len(all) > mostListeners {
		return nil, err
	}
	slices.SortFunc(all, func(a, b listener) int { return cmp.Or(cmp.Compare(a.port, b.port), a.address.Compare(b.address)) })
	all = slices.Compact(all)
	for _, l := range all {
		switch fd, err := l.bind(spec); {
		case errors.Is(err, unix.EADDRINUSE):
			return nil, nil
		case err != nil:
			return nil, err
		default:
			_ = unix.Close(fd)
		}
	}
	return all, nil
}

// mostListeners bounds the listeners of one proxy: one for each port, family, and thread.
const mostListeners = 512

// openAll opens a listener in the stead of each of a proxy's, or none. Where somebody listens already, nothing waits.
func openAll(ctx context.Context, ns *netns.NS, spec iptables.Spec, all []listener) (out []*spot, err error) {
	if err := kernel.MigrateRequests(ns); err != nil {
		return nil, err
	}
	heard := map[uint16]bool{}
	if err := kernel.EachListener(ctx, ns, func(s kernel.Socket) (more bool) { heard[s.Port] = true; return true }); err != nil {
		return nil, err
	}
	for _, l := range all {
		if heard[l.port] {
			continue
		}
		s, err := l.open(spec)
		if errors.Is(err, unix.EADDRINUSE) { // a process of the pod has the port, or a proxy that lets nobody listen beside it
			continue
		}
		if err != nil {
			closeAll(out)
			return nil, fmt.Errorf("listen in the proxy's stead on port %d: %w", l.port, err)
		}
		out = append(out, s)
	}
	return out, ctx.Err()
}

// open opens a listener of the proxy's owner. The calling thread is inside the namespace.
func (l listener) open(spec iptables.Spec) (*spot, error) {
	fd, err := l.bind(spec)
	if err != nil {
		return nil, err
	}
	if err = listenWith(fd, kernel.ParkedQueue); errors.Is(err, errSmaller) {
		err = listenWith(fd, kernel.SmallParkedQueue)
	}
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return &spot{file: os.NewFile(uintptr(fd), "parked"), port: l.port}, nil
}

var errSmaller = errors.New("net.core.somaxconn allows fewer connections to wait")

// listenWith has a socket listen, or changes how many connections may wait. The kernel makes the number smaller without a word.
func listenWith(fd, queue int) error {
	if err := unix.Listen(fd, queue); err != nil {
		return err
	}
	info, err := unix.GetsockoptTCPInfo(fd, unix.SOL_TCP, unix.TCP_INFO)
	if err == nil && info.Sacked != uint32(queue) { // of a listener: sk_max_ack_backlog (tcp_get_info in net/ipv4/tcp.c)
		err = errSmaller
	}
	return err
}

// bind makes a socket of the proxy's owner, bound to its address and port. MPTCP is not spoken: the kernel resets such clients when it moves them.
func (l listener) bind(spec iptables.Spec) (fd int, err error) {
	domain, level, transparent := unix.AF_INET, unix.SOL_IP, unix.IP_TRANSPARENT
	var at unix.Sockaddr
	if l.address.Is4() {
		at = &unix.SockaddrInet4{Port: int(l.port), Addr: l.address.As4()}
	} else {
		domain, level, transparent = unix.AF_INET6, unix.SOL_IPV6, unix.IPV6_TRANSPARENT
		at = &unix.SockaddrInet6{Port: int(l.port), Addr: l.address.As16()}
	}
	err = as(spec.ProxyUID, spec.ProxyGID, func() (err error) {
		fd, err = unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
		return err
	})
	if err != nil {
		return -1, err
	}
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	if domain == unix.AF_INET6 {
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_V6ONLY, map[bool]int{true: 1}[l.v6only]))
	}
	if spec.Mode == iptables.ModeTProxy {
		err = errors.Join(err, unix.SetsockoptInt(fd, level, transparent, 1))
	}
	if err = errors.Join(err, unix.Bind(fd, at)); err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// as calls f with another user and group for what it creates: rules know a socket's owner by them. The calling goroutine is locked to its thread.
func as(uid, gid uint32, f func() error) error {
	defer func() {
		_ = unix.Setfsgid(unix.Getegid())
		_ = unix.Setfsuid(unix.Geteuid())
	}()
	for _, id := range []struct {
		name string
		set  func(int) (int, error)
		want uint32
	}{{"group", unix.SetfsgidRetGid, gid}, {"user", unix.SetfsuidRetUid, uid}} {
		_, _ = id.set(int(id.want))
		if now, _ := id.set(-1); uint32(now) != id.want { // which changes nothing
			return fmt.Errorf("create a socket of %s %d: the agent lacks SETUID or SETGID", id.name, id.want)
		}
	}
	return f()
}
