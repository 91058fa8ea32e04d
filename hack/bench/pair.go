package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	goruntime "runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
)

// Addresses of a pod and of the world around it.
const (
	podIP     = "10.244.1.5"
	gatewayIP = "10.244.1.1"
	outsideIP = "93.184.216.34"
)

// pair is a pod's namespace joined to another one, the world.
type pair struct{ pod, world *netns.NS }

func newPair() (p pair, err error) {
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if p.pod, err = netns.New(); err != nil {
		return p, err
	}
	if p.world, err = netns.New(); err != nil {
		return p, err
	}
	if err := p.join(); err != nil {
		return p, fmt.Errorf("join namespaces: %w", err)
	}
	return p, nil
}

func (p pair) join() error {
	err := p.world.Inside(func() error {
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "w0"}, PeerName: "eth0", PeerNamespace: netlink.NsFd(p.pod.Fd())}
		return errors.Join(netlink.LinkAdd(veth), up("w0", gatewayIP+"/24"), up("lo", outsideIP+"/32"))
	})
	if err != nil {
		return err
	}
	return p.pod.Inside(func() error {
		if err := errors.Join(up("lo"), up("eth0", podIP+"/24")); err != nil {
			return err
		}
		_, all, err := net.ParseCIDR("0.0.0.0/0")
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{Dst: all, Gw: net.ParseIP(gatewayIP)})
	})
}

// up adds addresses to an interface of the calling thread's namespace and sets it up.
func up(name string, addresses ...string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	for _, a := range addresses {
		addr, err := netlink.ParseAddr(a)
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(link, addr); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(link)
}

// close lets the namespaces go, with all that is in them.
func (p pair) close() {
	for _, ns := range []*netns.NS{p.pod, p.world} {
		if ns != nil {
			_ = ns.Close()
		}
	}
}

// proxyGroup is the group of the proxy's sockets, by which rules know it.
const proxyGroup = 1337

// patience bounds each wait in the kernel.
func patience() *unix.Timeval { return &unix.Timeval{Sec: 5} }

// listen opens a listener of the proxy's group. By IP_TRANSPARENT it also takes connections that TPROXY hands over; its connections have its
// limit of time.
func listen(ns *netns.NS, port int) (fd int, err error) {
	err = ns.Inside(func() error {
		goruntime.LockOSThread() // for ever: the thread ends with this goroutine
		if _, _, errno := unix.RawSyscall(unix.SYS_SETFSGID, proxyGroup, 0, 0); errno != 0 {
			return errno
		}
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return fmt.Errorf("make socket: %w", err)
		}
		err := errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, patience()),
			unix.Bind(fd, &unix.SockaddrInet4{Port: port}),
			unix.Listen(fd, unix.SOMAXCONN),
		)
		if err != nil {
			err = errors.Join(fmt.Errorf("listen on port %d: %w", port, err), unix.Close(fd))
		}
		return err
	})
	return fd, err
}

// connect opens a connection from the namespace of the calling thread to the application's port.
func connect(to netip.Addr) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("make socket: %w", err)
	}
	err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, patience())
	if err == nil {
		err = retryInterrupted(func() error { return unix.Connect(fd, &unix.SockaddrInet4{Port: appPort, Addr: to.As4()}) })
	}
	if err != nil {
		return 0, errors.Join(fmt.Errorf("connect to %s: %w", to, err), unix.Close(fd))
	}
	return fd, nil
}

// accept takes the next connection of a listener.
func accept(listener int) (fd int, err error) {
	err = retryInterrupted(func() (err error) {
		fd, _, err = unix.Accept4(listener, unix.SOCK_CLOEXEC)
		return err
	})
	if err != nil {
		err = fmt.Errorf("accept the connection: %w", err)
	}
	return fd, err
}

// whole writes or reads all of a message.
func whole(call func(fd int, p []byte) (int, error), fd int, message []byte) error {
	return retryInterrupted(func() error {
		n, err := call(fd, message)
		if err == nil && n != len(message) {
			err = fmt.Errorf("%d of %d bytes", n, len(message))
		}
		return err
	})
}

// retryInterrupted repeats a call that a signal interrupts, such as those by which Go preempts threads.
func retryInterrupted(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// abort closes a connection at once, so that its port can be used again.
func abort(fd int) error {
	return errors.Join(unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}), unix.Close(fd))
}
