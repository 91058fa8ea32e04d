package kernel

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
)

// loopbackName is the name by which rules in the chains of iptables match the loopback interface. They cannot match an index.
const loopbackName = "lo"

// renamedLoopback returns an error if a backend matches the loopback interface by its name, and it has another one. A process of the pod with
// NET_ADMIN can give the name lo to the interface that leads out of the pod. No rule can repair that, and the kernel counts it as no
// change of rules.
func renamedLoopback(ns *netns.NS, of Driver) error {
	if !of.BuiltIn() {
		return nil
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
	if err != nil {
		return fmt.Errorf("ask for the name of the loopback interface: %w", err)
	}
	if request.Name() != loopbackName {
		return renamedError{request.Name(), of.Name()}
	}
	return nil
}

// renamedError is about a loopback interface with another name than the rules of a backend use.
type renamedError struct{ name, backend string }

// Error says what is wrong and what to do.
func (e renamedError) Error() string {
	return fmt.Sprintf("the loopback interface is called %q, and the rules of the %s backend match it by the name %s: name it so, or use the nftables backend",
		e.name, e.backend, loopbackName)
}

// renamedDrift is renamedLoopback as a difference.
func renamedDrift(ns *netns.NS, of Driver) (drift iptables.Drift, err error) {
	var renamed renamedError
	if err = renamedLoopback(ns, of); errors.As(err, &renamed) {
		return iptables.Drift{{Kind: iptables.KindRules, Text: "+ " + renamed.Error()}}, nil
	}
	return nil, err
}
