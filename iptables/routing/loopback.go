package routing

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
)

// Loopback lists those of want that the namespace's lo has, or cannot have.
func Loopback(ns *netns.NS, want []netip.Prefix) ([]netip.Prefix, error) {
	var found []netip.Prefix
	err := withNamespace(ns, func(n *namespace) error {
		for _, p := range want {
			if slices.Contains(n.addrs, p) || !n.possible(p) {
				found = append(found, p)
			}
		}
		return nil
	})
	return found, err
}

// AddLoopback adds the addresses that lo lacks and gives them back, so that a caller whose next step fails can undo it.
// An IPv6 address is left out where the namespace has IPv6 switched off on lo: nothing could use it.
func AddLoopback(ns *netns.NS, want []netip.Prefix) (added []netip.Prefix, err error) {
	err = withNamespace(ns, func(n *namespace) error {
		for _, p := range want {
			if slices.Contains(n.addrs, p) || !n.possible(p) {
				continue
			}
			if err := n.AddrAdd(n.lo, addrOf(p)); err != nil && !errors.Is(err, unix.EEXIST) {
				return fmt.Errorf("add address %s to lo: %w", p, err)
			}
			added = append(added, p)
		}
		return nil
	})
	return added, err
}

// RemoveLoopback takes addresses away from lo; one that is not there is success. It tells whether one was there.
func RemoveLoopback(ns *netns.NS, addrs []netip.Prefix) (removed bool, err error) {
	err = withNamespace(ns, func(n *namespace) error {
		for _, p := range addrs {
			switch err := n.AddrDel(n.lo, addrOf(p)); {
			case err == nil:
				removed = true
			case !errors.Is(err, unix.EADDRNOTAVAIL):
				return fmt.Errorf("remove address %s from lo: %w", p, err)
			}
		}
		return nil
	})
	return removed, err
}

// possible tells whether lo can take an address of p's family.
func (n *namespace) possible(p netip.Prefix) bool { return p.Addr().Is4() || n.hasIPv6() }

func addrOf(p netip.Prefix) *netlink.Addr {
	bits := p.Addr().BitLen()
	return &netlink.Addr{
		IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), bits)}, Scope: unix.RT_SCOPE_HOST,
		Flags: unix.IFA_F_NODAD, // usable at once: nobody else can have an address of lo
	}
}
