package kernel

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
)

// loopbackName is the name by which rules in the chains of iptables match the loopback interface. They cannot match an index.
const loopbackName = "lo"

// renamedLoopback returns a difference if a backend matches the loopback interface by its name, and it has another one. A process of the pod with
// NET_ADMIN can give the name lo to the interface that leads out of the pod. No rule can repair that, and the kernel counts it as no
// change of rules.
func renamedLoopback(ns *netns.NS, of Driver) (iptables.Drift, error) {
	if !of.BuiltIn() {
		return nil, nil
	}
	request, err := unix.NewIfreq("")
	if err == nil {
		request.SetUint32(iptables.LoopbackIndex)
		err = ns.Inside(func() error {
			conn, err := ns.Netlink(unix.NETLINK_ROUTE)
			if err != nil {
				return err
			}
			return unix.IoctlIfreq(conn.Fd(), unix.SIOCGIFNAME, request)
		})
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("ask for the name of the loopback interface: %w", err)
	case request.Name() == loopbackName:
		return nil, nil
	}
	return iptables.Drift{{Kind: iptables.KindRules, Text: fmt.Sprintf(
		"+ the loopback interface is called %q, and the rules of the %s backend match it by the name %s: name it so, or use the nftables backend",
		request.Name(), of.Name(), loopbackName,
	)}}, nil
}

// loopbackError is renamedLoopback as an error.
func loopbackError(ns *netns.NS, of Driver) error {
	drift, err := renamedLoopback(ns, of)
	if len(drift) > 0 {
		return errors.New(strings.TrimPrefix(drift.String(), "+ "))
	}
	return err
}
