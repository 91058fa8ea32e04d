package agent

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/rawnetlink"
	"istio-pod-network-controller/sidecars"
)

// Lengths and offsets of struct inet_diag_req_v2 and struct inet_diag_msg in include/uapi/linux/inet_diag.h.
const (
	diagRequestSize = 56
	diagUID         = 64
	diagMessageSize = 72
	tcpListen       = 10 // TCP_LISTEN of include/net/tcp_states.h
)

// checkPorts returns sidecars.ErrPortTaken if a process of another user than the proxy's listens on a port of the proxy's: it would be taken for
// the proxy. A process of the application that has become the proxy's user is not found out.
func (a sidecarAsker) checkPorts(ctx context.Context, s podnet.Sandbox, p *sidecars.Profile) error {
	user := uint32(p.UID()) //nolint:gosec // the schema has checked it
	_, err := in(ctx, a.guarded, s.Place(), func(ctx context.Context, ns *netns.NS) (struct{}, error) {
		conn, err := ns.Netlink(unix.NETLINK_SOCK_DIAG)
		if err != nil {
			return struct{}{}, fmt.Errorf("ask who listens: %w", err)
		}
		end, _ := ctx.Deadline()
		for _, port := range proxyPorts(p.Spec) {
			other, err := otherListener(conn, end, uint16(port), user) //nolint:gosec // the schema has checked it
			if err != nil {
				return struct{}{}, fmt.Errorf("ask who listens on port %d: %w", port, err)
			}
			if other != nil {
				return struct{}{}, fmt.Errorf("%w: a process of the application, of user %d, listens on port %d, which the proxy (user %d) needs: have it use another port",
					sidecars.ErrPortTaken, *other, port, user)
			}
		}
		return struct{}{}, nil
	})
	return err
}

// proxyPorts are those on which nobody but the proxy may listen.
func proxyPorts(spec v1alpha1.SidecarProfileSpec) (out []int32) {
	ports := []int32{spec.Network.OutboundPort, spec.Network.InboundPort, spec.Readiness.TCPPort}
	if spec.Readiness.HTTPGet != nil {
		ports = append(ports, spec.Readiness.HTTPGet.Port)
	}
	for _, port := range ports {
		if port != 0 {
			out = append(out, port)
		}
	}
	return out
}

// otherListener returns another user than the given one that listens on a TCP port, at any address of either family, or nil.
func otherListener(conn *rawnetlink.Conn, end time.Time, port uint16, user uint32) (other *uint32, err error) {
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		err := eachListener(conn, end, family, port, func(body []byte) (more bool) {
			if uid := binary.NativeEndian.Uint32(body[diagUID:]); uid != user {
				other = &uid
			}
			return other == nil
		})
		if other != nil || err != nil {
			return other, err
		}
	}
	return nil, nil //nolint:nilnil // nobody
}
