package routing

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// settled lists those of want that lo had, or cannot have.
func (n *namespace) settled(want []netip.Prefix) (found []netip.Prefix) {
	for _, p := range want {
		if slices.Contains(n.addrs, p) || !n.possible(p) {
			found = append(found, p)
		}
	}
	return found
}

// addLoopback adds the addresses that lo lacks and gives them back, so that a caller whose next step fails can undo it.
// An IPv6 address is left out where the namespace has IPv6 switched off on lo: nothing could use it.
func (n *namespace) addLoopback(want []netip.Prefix) (added []netip.Prefix, err error) {
	settled := n.settled(want)
	for _, p := range want {
		if slices.Contains(settled, p) {
			continue
		}
		if err := n.AddrAdd(n.lo, addrOf(p)); err != nil && !errors.Is(err, unix.EEXIST) {
			return added, fmt.Errorf("add address %s to lo: %w", p, err)
		}
		added = append(added, p)
	}
	return added, nil
}

// removeLoopback takes addresses away from lo; one that is not there is success. It tells whether one was there.
func (n *namespace) removeLoopback(addrs []netip.Prefix) (removed bool, err error) {
	for _, p := range addrs {
		switch err := n.AddrDel(n.lo, addrOf(p)); {
		case err == nil:
			removed = true
		case !errors.Is(err, unix.EADDRNOTAVAIL):
			return removed, fmt.Errorf("remove address %s from lo: %w", p, err)
		}
	}
	return removed, nil
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
