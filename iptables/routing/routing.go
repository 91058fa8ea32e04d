// Package routing puts a Ruleset's addresses and policy routes into a network namespace over rtnetlink: the part that no packet filter
// can hold, and that both backends need.
//
// The routing table is ours: any rule that leads to it and any route in it that is not exactly ours is drift. Rules, routes and tables
// of other programs are not touched. Reading is bounded, and removal names numbers only.
package routing

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/foreign"
)

// limit bounds one visit to a namespace; the kernel answers in microseconds.
const limit = 2 * time.Second

// Read returns the addresses and policy routes in the namespace that may be ours.
func Read(ns *netns.NS) (have iptables.Ruleset, err error) {
	err = within(ns, func(n *namespace) error {
		have.Loopback, have.Routing = n.addressesInPlace(iptables.LoopbackAddrs()), n.completeRoutes()
		return nil
	})
	return have, err
}

// Drift returns how the addresses and policy routes in the namespace differ from want's.
func Drift(ns *netns.NS, want iptables.Ruleset) (iptables.Drift, error) {
	have, err := Read(ns)
	return iptables.Diff(iptables.Ruleset{Loopback: want.Loopback, Routing: want.Routing}, have), err
}

// AddressDrift is Drift without routes. Rules and routes of ours that are left in a namespace do nothing while no rule sets their mark.
func AddressDrift(ns *netns.NS, want iptables.Ruleset) (drift iptables.Drift, err error) {
	if len(want.Loopback) == 0 {
		return nil, nil
	}
	err = inside(ns, func(n *namespace) error {
		if all, err := n.hasAddresses(want.Loopback); err != nil || all {
			return err
		}
		if err := n.readAddresses(); err != nil {
			return err
		}
		drift = iptables.Diff(iptables.Ruleset{Loopback: want.Loopback}, iptables.Ruleset{Loopback: n.addressesInPlace(want.Loopback)})
		return nil
	})
	return drift, err
}

// Change is a change of addresses and routes that is under way. The rules that need them are written after Prepare and before Finish. If they
// cannot be written, what was added stays: it does nothing without them, and the next change finds it.
type Change struct {
	ns       *netns.NS
	want     []iptables.PolicyRoute
	unwanted bool  // there are rules or routes of ours that are not wanted
	left     error // routes were left that should be removed
}

// Prepare adds the addresses and routes of want that are missing. Call it before the rules that need them are written. It sets lo up
// if it is down, as the container runtime will do soon: without it the kernel accepts no IPv6 route.
func Prepare(ns *netns.NS, want iptables.Ruleset) (Change, error) {
	c := Change{ns: ns, want: want.Routing}
	err := within(ns, func(n *namespace) (err error) {
		if err := n.setLoUp(); err != nil {
			return err
		}
		c.unwanted = len(n.otherRoutes(want.Routing)) > 0
		if err = n.addLoopback(want.Loopback); err == nil {
			err = n.addPolicy(want.Routing)
		}
		c.left = unfinished(n.policy)
		return err
	})
	return c, err
}

// Finish removes our routes that are not wanted. Call it when the rules that needed them are gone. It returns an error if a table of ours
// holds more foreign routes than were removed.
func (c Change) Finish() error {
	if !c.unwanted {
		return c.left
	}
	return within(c.ns, func(n *namespace) error { return errors.Join(n.removeOthers(c.want), unfinished(n.policy)) })
}

// Remove removes everything that may be ours, and reports whether it found any. Addresses stay if another project has rules in
// the namespace: it uses the same ones.
func Remove(ctx context.Context, ns *netns.NS) (removed bool, err error) {
	others, err := foreign.Find(ctx, ns)
	if err != nil {
		return false, fmt.Errorf("remove addresses: %w", err)
	}
	err = within(ns, func(n *namespace) (err error) {
		if err := n.removeOthers(nil); err != nil {
			return err
		}
		if others == nil {
			removed, err = n.removeLoopback(iptables.LoopbackAddrs())
		}
		removed = removed || len(n.completeRoutes()) > 0
		return errors.Join(err, unfinished(n.policy))
	})
	return removed, err
}

// within calls f on a thread inside the namespace, with its addresses and policy routes read.
func within(ns *netns.NS, f func(*namespace) error) error {
	return inside(ns, func(n *namespace) error {
		if err := n.read(); err != nil {
			return err
		}
		return f(n)
	})
}

// inside calls f on a thread inside the namespace.
func inside(ns *netns.NS, f func(*namespace) error) error {
	return ns.Inside(func() error {
		conn, err := ns.Netlink(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		return f(&namespace{conn: conn, end: time.Now().Add(limit)})
	})
}
