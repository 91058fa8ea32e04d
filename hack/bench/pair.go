package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	goruntime "runtime"
	"strings"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
)

// Addresses of a pod and of the world around it, and the application's port.
const (
	podIP     = "10.244.1.5"
	gatewayIP = "10.244.1.1"
	outsideIP = "93.184.216.34"
	appPort   = 8080
)

// What joins the namespaces, for `ip -batch`. The world's end of the link comes with the pod's.
const (
	podLink = "link set lo up\nlink add eth0 type veth peer name w0 netns %s\naddr add " + podIP + "/24 dev eth0\nlink set eth0 up\n" +
		"route add default via " + gatewayIP + "\n"
	worldLink = "link set lo up\naddr add " + outsideIP + "/32 dev lo\naddr add " + gatewayIP + "/24 dev w0\nlink set w0 up\n"
)

// pair is a pod's namespace joined to another one, the world.
type pair struct{ pod, world *netns.NS }

func newPair(ctx context.Context) (p pair, err error) {
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
	if err := ip(ctx, p.pod, fmt.Sprintf(podLink, p.world.Path())); err != nil {
		return p, err
	}
	return p, ip(ctx, p.world, worldLink)
}

// ip runs commands of ip in a namespace.
func ip(ctx context.Context, in *netns.NS, batch string) error {
	return in.Inside(func() error {
		cmd := exec.CommandContext(ctx, "ip", "-batch", "-")
		cmd.Stdin = strings.NewReader(batch)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("join namespaces: %w: %s", err, out)
		}
		return nil
	})
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

// socket makes one whose waits in the kernel are bounded.
func socket() (fd int, err error) {
	if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return 0, fmt.Errorf("make socket: %w", err)
	}
	patience := &unix.Timeval{Sec: 5}
	return fd, errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, patience), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, patience))
}

// listen opens a listener of the proxy's group. By IP_TRANSPARENT it also takes connections that TPROXY hands over.
func listen(ns *netns.NS, port int) (fd int, err error) {
	err = ns.Inside(func() error {
		goruntime.LockOSThread() // for ever: the thread ends with this goroutine
		if _, _, errno := unix.RawSyscall(unix.SYS_SETFSGID, proxyGroup, 0, 0); errno != 0 {
			return errno
		}
		if fd, err = socket(); err != nil {
			return err
		}
		err := errors.Join(unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1), unix.Bind(fd, &unix.SockaddrInet4{Port: port}), unix.Listen(fd, unix.SOMAXCONN))
		if err != nil {
			err = errors.Join(fmt.Errorf("listen on port %d: %w", port, err), unix.Close(fd))
		}
		return err
	})
	return fd, err
}

// connect opens a connection from the namespace of the calling thread to the application's port.
func connect(to netip.Addr) (fd int, err error) {
	if fd, err = socket(); err != nil {
		return 0, err
	}
	err = retryInterrupted(func() error { return unix.Connect(fd, &unix.SockaddrInet4{Port: appPort, Addr: to.As4()}) })
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
