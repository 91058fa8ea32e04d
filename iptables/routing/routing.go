// Package routing puts a Ruleset's addresses and policy routes into a network namespace over rtnetlink: what a packet
// filter cannot hold, and what every backend needs alike.
package routing

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	vishns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
)

// Read gives those of all the addresses and routes that may be ours which the namespace holds.
func Read(ns *netns.NS) (iptables.Ruleset, error) {
	addrs, err := Loopback(ns, iptables.LoopbackAddrs())
	if err != nil {
		return iptables.Ruleset{}, err
	}
	routes, err := Policy(ns, iptables.PolicyRoutes())
	return iptables.Ruleset{Loopback: addrs, Routing: routes}, err
}

// Prepare adds the addresses and routes of want that are missing. It comes before the rules that need them; undo takes back
// what was added, for a caller whose next step fails.
func Prepare(ns *netns.NS, want iptables.Ruleset) (undo func() error, err error) {
	before, err := Policy(ns, iptables.PolicyRoutes())
	if err != nil {
		return nil, err
	}
	added, err := AddLoopback(ns, want.Loopback)
	undo = func() error {
		_, errLoopback := RemoveLoopback(ns, added)
		return errors.Join(errLoopback, Prune(ns, iptables.Ruleset{Routing: before}))
	}
	if err == nil {
		err = AddPolicy(ns, want.Routing)
	}
	if err != nil {
		return nil, errors.Join(err, undo())
	}
	return undo, nil
}

// Prune removes the routes of ours that want does not have. It comes after the rules that needed them are gone.
func Prune(ns *netns.NS, want iptables.Ruleset) error {
	gone := slices.DeleteFunc(iptables.PolicyRoutes(), func(p iptables.PolicyRoute) bool { return slices.Contains(want.Routing, p) })
	return RemovePolicy(ns, gone)
}

// Remove takes all away that may be ours, and tells whether there was anything.
func Remove(ns *netns.NS) (removed bool, err error) {
	before, err := Policy(ns, iptables.PolicyRoutes())
	if err != nil {
		return false, err
	}
	if err := Prune(ns, iptables.Ruleset{}); err != nil {
		return false, err
	}
	removed, err = RemoveLoopback(ns, iptables.LoopbackAddrs())
	return removed || len(before) > 0, err
}

// namespace is one open namespace with what is known of its lo.
type namespace struct {
	*netlink.Handle
	lo    netlink.Link
	addrs []netip.Prefix
}

// families are those that the namespace has.
func (n *namespace) families() []int {
	if n.hasIPv6() {
		return []int{unix.AF_INET, unix.AF_INET6}
	}
	return []int{unix.AF_INET}
}

// hasIPv6 tells whether IPv6 is on for lo: the kernel itself puts ::1 there when it is.
func (n *namespace) hasIPv6() bool {
	return slices.ContainsFunc(n.addrs, func(p netip.Prefix) bool { return p.Addr() == netip.IPv6Loopback() })
}

func withNamespace(ns *netns.NS, f func(*namespace) error) error {
	h, err := netlink.NewHandleAt(vishns.NsHandle(ns.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open rtnetlink socket: %w", err)
	}
	defer h.Close()
	n := &namespace{Handle: h}
	if n.lo, err = h.LinkByName("lo"); err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	addrs, err := h.AddrList(n.lo, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list addresses of lo: %w", err)
	}
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			bits, _ := a.Mask.Size()
			n.addrs = append(n.addrs, netip.PrefixFrom(ip.Unmap(), bits))
		}
	}
	return f(n)
}
