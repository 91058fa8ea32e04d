package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/rawnetlink"
	"istio-pod-network-controller/iptables"
)

// Lengths and offsets of struct inet_diag_req and struct inet_diag_msg in include/uapi/linux/inet_diag.h.
const (
	diagRequestSize = 60
	diagStates      = 52
	diagPort        = 4 // big endian
	diagAddress     = 8
	diagQueue       = 56 // of a listener: the connections that wait
	diagMost        = 60 // of a listener: how many may wait
	diagUID         = 64
	diagMessageSize = 72
	diagV6Only      = 11 // INET_DIAG_SKV6ONLY, an attribute behind the message
)

const (
	// tcpSockets asks for TCP sockets of both families at once, unlike SOCK_DIAG_BY_FAMILY: TCPDIAG_GETSOCK of linux/inet_diag.h, which
	// all kernels keep for older programs. It halves the cost, which is the kernel's walk over the sockets of all namespaces.
	tcpSockets = 18
	tcpListen  = 10 // TCP_LISTEN of include/net/tcp_states.h
	// maxListeners bounds the sockets that are read of one pod.
	maxListeners = 8192
)

// ParkedQueue is how many connections may wait in one listener that stands in for a proxy (package parking), and SmallParkedQueue how many in a pod with
// a smaller net.core.somaxconn (4096 by default). The numbers also tell such listeners, of any agent, from the proxy's: sockets of both have the same
// owner.
const (
	ParkedQueue      = 3779
	SmallParkedQueue = 113
)

// Listening returns the ports on which a pod listens for others, without those of its proxy. It implements controllers.Listeners.
func (n Namespaces) Listening(ctx context.Context, at podnet.Place, isProxy func(uid uint32) bool) ([]uint16, error) {
	return Visit(ctx, n, at, func(ctx context.Context, ns *netns.NS) (ports []uint16, err error) {
		left := maxListeners
		err = EachListener(ctx, ns, func(s Socket) (more bool) {
			if !isProxy(s.UID) && !s.Loopback {
				ports = append(ports, s.Port)
			}
			left--
			return left > 0
		})
		slices.Sort(ports)
		return slices.Compact(ports), err
	})
}

// Unheard returns the given ports on which no socket of the pod listens, whatever its user and address. A kernel without the modules inet_diag and
// tcp_diag cannot tell: then there are none. It implements controllers.Listeners.
func (n Namespaces) Unheard(ctx context.Context, at podnet.Place, ports []uint16) ([]uint16, error) {
	return Visit(ctx, n, at, func(ctx context.Context, ns *netns.NS) (unheard []uint16, err error) {
		unheard = slices.Clone(ports)
		err = dumpSockets(ctx, ns, 1<<tcpListen, 0, exceptParked(func(s Socket) (more bool) {
			unheard = slices.DeleteFunc(unheard, func(port uint16) bool { return port == s.Port })
			return len(unheard) > 0
		}))
		switch {
		case cannotTell(err):
			return nil, nil
		case err != nil:
			return nil, err
		}
		return unheard, nil
	})
}

// Families returns the families of all listeners on the ports. It implements controllers.Listeners.
func (n Namespaces) Families(ctx context.Context, at podnet.Place, ports []uint16) (iptables.Hold, error) {
	return Visit(ctx, n, at, func(ctx context.Context, ns *netns.NS) (in iptables.Hold, err error) {
		err = EachListener(ctx, ns, func(s Socket) (more bool) {
			if !slices.Contains(ports, s.Port) {
				return true
			}
			if !s.V6Only {
				in |= iptables.HoldIPv4
			}
			if !s.Address.Is4() {
				in |= iptables.HoldIPv6
			}
			return in != iptables.HoldBoth
		})
		return in, err
	})
}

// Socket is a TCP socket of a pod.
type Socket struct {
	Port uint16
	UID  uint32
	// Waiting is how many connections a listener has not accepted yet.
	Waiting uint32
	// Most is how many may.
	Most    uint32
	Address netip.Addr
	// V6Only is set of a listener at an address of IPv6 that takes no connections of IPv4.
	V6Only bool
	// Loopback is set if nobody outside of the pod can reach it.
	Loopback bool
}

// EachListener is EachSocket for listening sockets, on any port. Stand-ins for a proxy are left out.
func EachListener(ctx context.Context, ns *netns.NS, f func(Socket) (more bool)) error {
	return EachSocket(ctx, ns, 1<<tcpListen, 0, exceptParked(f))
}

func exceptParked(f func(Socket) (more bool)) func(Socket) (more bool) {
	return func(s Socket) (more bool) { return s.Most == ParkedQueue || s.Most == SmallParkedQueue || f(s) }
}

// Waiting returns how many connections to a port nobody has accepted yet.
func Waiting(ctx context.Context, ns *netns.NS, port uint16) (n uint32, err error) {
	err = EachSocket(ctx, ns, 1<<tcpListen, port, func(s Socket) (more bool) {
		n += s.Waiting
		return true
	})
	return n, err
}

// EachSocket calls f with each TCP socket of a namespace, of either family, in one of the states (a bit for each, include/net/tcp_states.h),
// whose own port is the given one, or any if it is 0, until f returns false. On a kernel without the modules inet_diag and tcp_diag nobody is
// found.
func EachSocket(ctx context.Context, ns *netns.NS, states uint32, port uint16, f func(Socket) (more bool)) error {
	if err := dumpSockets(ctx, ns, states, port, f); !cannotTell(err) {
		return err
	}
	return nil
}

// cannotTell reports whether the kernel lacks inet_diag or tcp_diag.
func cannotTell(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP)
}

// dumpSockets is EachSocket with every error.
func dumpSockets(ctx context.Context, ns *netns.NS, states uint32, port uint16, f func(Socket) (more bool)) error {
	conn, err := ns.Netlink(unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return fmt.Errorf("ask for sockets: %w", err)
	}
	request := make([]byte, diagRequestSize)
	request[0] = unix.AF_INET // which the kernel does not read
	binary.BigEndian.PutUint16(request[diagPort:], port)
	binary.NativeEndian.PutUint32(request[diagStates:], states)
	end, _ := ctx.Deadline()
	err = conn.Dump(end, rawnetlink.Request{Kind: tcpSockets, Header: request}, func(body []byte) (more bool) {
		return len(body) < diagMessageSize || f(socketOf(body))
	})
	if err != nil {
		return fmt.Errorf("ask for sockets: %w", err)
	}
	return nil
}

// socketOf reads an inet_diag_msg.
func socketOf(body []byte) Socket {
	address := netip.AddrFrom4([4]byte(body[diagAddress : diagAddress+4]))
	if body[0] == unix.AF_INET6 {
		address = netip.AddrFrom16([16]byte(body[diagAddress : diagAddress+16])).Unmap()
	}
	return Socket{
		Port: binary.BigEndian.Uint16(body[diagPort:]), UID: binary.NativeEndian.Uint32(body[diagUID:]),
		Waiting: binary.NativeEndian.Uint32(body[diagQueue:]), Most: binary.NativeEndian.Uint32(body[diagMost:]),
		Address: address, Loopback: address.IsLoopback(), V6Only: isV6Only(body[diagMessageSize:]),
	}
}

// isV6Only reads the attributes behind an inet_diag_msg.
func isV6Only(attributes []byte) (only bool) {
	for kind, value := range rawnetlink.Each(attributes) {
		if kind == diagV6Only && len(value) > 0 {
			only = value[0] != 0
		}
	}
	return only
}
