// Package routing puts a Ruleset's addresses into a network namespace over rtnetlink: what a packet filter cannot hold.
package routing

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	vishns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
)

// Loopback lists the addresses of the namespace's lo that are among want.
func Loopback(ns *netns.NS, want []netip.Prefix) ([]netip.Prefix, error) {
	var found []netip.Prefix
	err := withLo(ns, func(_ *netlink.Handle, _ netlink.Link, have []netip.Prefix) error {
		for _, p := range want {
			if slices.Contains(have, p) || !possible(p, have) {
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
	err = withLo(ns, func(h *netlink.Handle, lo netlink.Link, have []netip.Prefix) error {
		for _, p := range want {
			if slices.Contains(have, p) || !possible(p, have) {
				continue
			}
			if err := h.AddrAdd(lo, addrOf(p)); err != nil && !errors.Is(err, unix.EEXIST) {
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
	err = withLo(ns, func(h *netlink.Handle, lo netlink.Link, _ []netip.Prefix) error {
		for _, p := range addrs {
			switch err := h.AddrDel(lo, addrOf(p)); {
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

// possible tells whether lo can take an address of p's family: with IPv6 on, the kernel itself has put ::1 there.
func possible(p netip.Prefix, have []netip.Prefix) bool {
	return p.Addr().Is4() || slices.ContainsFunc(have, func(h netip.Prefix) bool { return h.Addr() == netip.IPv6Loopback() })
}

func withLo(ns *netns.NS, f func(h *netlink.Handle, lo netlink.Link, have []netip.Prefix) error) error {
	h, err := netlink.NewHandleAt(vishns.NsHandle(ns.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open rtnetlink socket: %w", err)
	}
	defer h.Close()
	lo, err := h.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	addrs, err := h.AddrList(lo, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list addresses of lo: %w", err)
	}
	have := make([]netip.Prefix, 0, len(addrs))
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			bits, _ := a.Mask.Size()
			have = append(have, netip.PrefixFrom(ip.Unmap(), bits))
		}
	}
	return f(h, lo, have)
}

func addrOf(p netip.Prefix) *netlink.Addr {
	bits := p.Addr().BitLen()
	return &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), bits)}, Scope: unix.RT_SCOPE_HOST}
}
