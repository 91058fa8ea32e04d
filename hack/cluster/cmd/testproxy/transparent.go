package main

import (
	"errors"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// fromClientMark marks connections in a client's name, as Envoy marks its own: by it their answers find back.
const fromClientMark = 1337

// openTransparent lets a listener take connections to addresses that are not the pod's.
func openTransparent(network, _ string, raw syscall.RawConn) error {
	return withSocket(raw, func(fd int) error { return setTransparent(fd, network == "tcp6") })
}

// fromClientAddress lets a connection have a source address that is not the pod's.
func fromClientAddress(client netip.Addr) func(network, address string, raw syscall.RawConn) error {
	return func(_, _ string, raw syscall.RawConn) error {
		return withSocket(raw, func(fd int) error {
			return errors.Join(setTransparent(fd, client.Is6()), unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, fromClientMark))
		})
	}
}

// setTransparent wants NET_ADMIN or NET_RAW, in the pod's network namespace alone.
func setTransparent(fd int, v6 bool) error {
	if v6 {
		return unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1)
	}
	return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1)
}

func withSocket(raw syscall.RawConn, f func(fd int) error) error {
	var err error
	errControl := raw.Control(func(fd uintptr) { err = f(int(fd)) })
	return errors.Join(err, errControl)
}
