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
func Read(ns *netns.NS) (have iptables.Ruleset, err error) {
	err = within(ns, func(n *namespace) error {
		have.Loopback, have.Routing = n.settled(iptables.LoopbackAddrs()), n.whole()
		return nil
	})
	return have, err
}

// Change is a namespace's addresses and routes on their way to what is wanted. What needs them is written between Prepare
// and its end, which is Finish or Undo.
type Change struct {
	ns     *netns.NS
	want   []iptables.PolicyRoute
	before []iptables.PolicyRoute
	added  []netip.Prefix
	spare  bool // there was something of a route that is not wanted
}

// Prepare adds the addresses and routes of want that are missing. It comes before the rules that need them.
func Prepare(ns *netns.NS, want iptables.Ruleset) (Change, error) {
	c := Change{ns: ns, want: want.Routing}
	err := within(ns, func(n *namespace) (err error) {
		c.before, c.spare = n.whole(), len(n.others(want.Routing)) > 0
		if c.added, err = n.addLoopback(want.Loopback); err == nil {
			err = n.addPolicy(want.Routing)
		}
		if err != nil {
			return errors.Join(err, c.Undo())
		}
		return nil
	})
	return c, err
}

// Finish removes the routes of ours that are not wanted. It comes after the rules that needed them are gone.
func (c Change) Finish() error {
	if !c.spare {
		return nil
	}
	return within(c.ns, func(n *namespace) error { return n.removeOthers(c.want) })
}

// Undo takes back what Prepare has added, where the next step failed.
func (c Change) Undo() error {
	return within(c.ns, func(n *namespace) error {
		_, err := n.removeLoopback(c.added)
		return errors.Join(err, n.removeOthers(c.before))
	})
}

// Remove takes all away that may be ours, and tells whether there was anything.
func Remove(ns *netns.NS) (removed bool, err error) {
	err = within(ns, func(n *namespace) (err error) {
		if err := n.removeOthers(nil); err != nil {
			return err
		}
		removed, err = n.removeLoopback(iptables.LoopbackAddrs())
		removed = removed || len(n.whole()) > 0
		return err
	})
	return removed, err
}

// namespace is one open namespace with what it was found to hold: addresses of lo, and of the routes that may be ours.
type namespace struct {
	*netlink.Handle
	lo     netlink.Link
	addrs  []netip.Prefix
	policy []holding
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

// within opens the namespace for f. That takes longer than most of what is done there: do it all in one.
func within(ns *netns.NS, f func(*namespace) error) error {
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
	if err := n.readPolicy(); err != nil {
		return err
	}
	return f(n)
}
