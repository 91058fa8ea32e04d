package foreign

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/rawnetlink"
	"istio-pod-network-controller/iptables"
)

// Bounds of what is read of a namespace's devices and addresses. Beyond them no rule is taken for one about foreign addresses or devices.
const (
	maxDevices   = 1024
	maxAddresses = 512
)

const (
	linkHeaderSize  = 16 // struct ifinfomsg
	routeHeaderSize = 12 // struct rtmsg
)

// aroundOf returns a function that reads a namespace's surroundings once. It is for a thread inside the namespace.
func aroundOf(ns *netns.NS, end time.Time) func() surroundings {
	return sync.OnceValue(func() (out surroundings) {
		conn, err := ns.Netlink(unix.NETLINK_ROUTE)
		if err != nil {
			return out
		}
		err = rawnetlink.Uninterrupted(func() error {
			out = surroundings{known: true, devices: map[uint32]string{}}
			return errors.Join(out.readDevices(conn, end), out.readAddresses(conn, end, unix.AF_INET), out.readAddresses(conn, end, unix.AF_INET6))
		})
		out.known = out.known && err == nil
		return out
	})
}

func (s *surroundings) readDevices(conn *rawnetlink.Conn, end time.Time) error {
	request := rawnetlink.Request{Kind: unix.RTM_GETLINK, Header: make([]byte, linkHeaderSize)}
	return conn.Dump(end, request, func(body []byte) bool {
		s.known = s.known && len(s.devices) < maxDevices
		if len(body) >= linkHeaderSize {
			a := rawnetlink.Attributes(body[linkHeaderSize:])
			s.devices[binary.NativeEndian.Uint32(body[4:])] = rawnetlink.Name(a[unix.IFLA_IFNAME])
		}
		return s.known
	})
}

// readAddresses reads the local routes of a family: the kernel makes one for each address, and one for the prefix of lo. Others may be made by hand.
// Our own table is for marked packets alone.
func (s *surroundings) readAddresses(conn *rawnetlink.Conn, end time.Time, family byte) error {
	header := make([]byte, routeHeaderSize)
	header[0], header[7] = family, unix.RTN_LOCAL
	err := conn.Dump(end, rawnetlink.Request{Kind: unix.RTM_GETROUTE, Header: header}, func(body []byte) bool {
		if len(body) < routeHeaderSize || body[0] != family || body[7] != unix.RTN_LOCAL { // an older kernel returns all routes
			return true
		}
		a := rawnetlink.Attributes(body[routeHeaderSize:])
		if u32(a[unix.RTA_TABLE], 0) == iptables.RouteTable {
			return true
		}
		address := netip.IPv4Unspecified()
		if family == unix.AF_INET6 {
			address = netip.IPv6Unspecified()
		}
		if dst, ok := netip.AddrFromSlice(a[unix.RTA_DST]); ok {
			address = dst
		}
		s.local = append(s.local, netip.PrefixFrom(address, int(body[1])))
		s.known = s.known && len(s.local) <= maxAddresses
		return s.known
	})
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.ENOENT) { // no IPv6, or no routes
		return nil
	}
	return err
}
