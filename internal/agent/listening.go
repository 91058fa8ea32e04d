package agent

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/rawnetlink"
)

// Offsets in struct inet_diag_msg of include/uapi/linux/inet_diag.h.
const (
	diagPort    = 4 // big endian
	diagAddress = 8
)

// maxListeners bounds the sockets that are read of one pod and family.
const maxListeners = 4096

// listeners reads the listening sockets of a namespace over netlink (sock_diag).
type listeners struct{ guarded Exclusive }

// Listening implements controllers.Listeners.
func (l listeners) Listening(ctx context.Context, at podnet.Place, proxyUID uint32) ([]uint16, error) {
	return in(ctx, l.guarded, at, func(ctx context.Context, ns *netns.NS) ([]uint16, error) {
		conn, err := ns.Netlink(unix.NETLINK_SOCK_DIAG)
		if err != nil {
			return nil, fmt.Errorf("ask who listens: %w", err)
		}
		end, _ := ctx.Deadline()
		var ports []uint16
		for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
			of, err := listeningPorts(conn, end, family, proxyUID)
			if err != nil {
				return nil, fmt.Errorf("ask who listens: %w", err)
			}
			ports = append(ports, of...)
		}
		slices.Sort(ports)
		return slices.Compact(ports), nil
	})
}

func listeningPorts(conn *rawnetlink.Conn, end time.Time, family byte, proxyUID uint32) (ports []uint16, err error) {
	left := maxListeners
	err = eachListener(conn, end, family, 0, func(body []byte) (more bool) {
		if binary.NativeEndian.Uint32(body[diagUID:]) != proxyUID && !listensOnLoopback(body) {
			ports = append(ports, binary.BigEndian.Uint16(body[diagPort:]))
		}
		left--
		return left > 0
	})
	return ports, err
}

// eachListener calls f with the inet_diag_msg of each TCP socket of a family that listens on a port, or on any if it is 0, until f returns
// false. A kernel without the module tcp_diag answers ENOENT: there nobody is found.
func eachListener(conn *rawnetlink.Conn, end time.Time, family byte, port uint16, f func(body []byte) (more bool)) error {
	request := make([]byte, diagRequestSize)
	request[0], request[1] = family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(request[4:], 1<<tcpListen)
	binary.BigEndian.PutUint16(request[8:], port)
	err := conn.Dump(end, rawnetlink.Request{Kind: unix.SOCK_DIAG_BY_FAMILY, Header: request}, func(body []byte) (more bool) {
		return len(body) < diagMessageSize || f(body)
	})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// listensOnLoopback reports whether nobody outside of the pod can reach the socket of an inet_diag_msg.
func listensOnLoopback(body []byte) bool {
	address := netip.AddrFrom4([4]byte(body[diagAddress : diagAddress+4]))
	if body[0] == unix.AF_INET6 {
		address = netip.AddrFrom16([16]byte(body[diagAddress : diagAddress+16])).Unmap()
	}
	return address.IsLoopback()
}
