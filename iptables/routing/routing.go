// Package routing puts a Ruleset's addresses and policy routes into a network namespace over rtnetlink, and a setting that rules need on older
// kernels: the part that no packet filter can hold, and that both backends need.
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
	err = within(ns, func(n *namespace) (err error) {
		have.Loopback, have.Routing = n.inPlace(), n.routed()
		if n.hasPolicy() {
			have.Unsourced, err = unsourced()
		}
		return err
	})
	return have, err
}

// Drift returns how the addresses and policy routes in the namespace differ from want's.
func Drift(ns *netns.NS, want iptables.Ruleset) (iptables.Drift, error) {
	have, err := Read(ns)
	return iptables.Diff(want, have), err
}

// AddressDrift is Drift without routes. Rules and routes of ours that are left in a namespace do nothing while no rule sets their mark.
func AddressDrift(ns *netns.NS, want iptables.Ruleset) (drift iptables.Drift, err error) {
	if !want.Loopback {
		return nil, nil
	}
	err = inside(ns, func(n *namespace) error {
		if has, err := n.hasAddress(); err != nil || has {
			return err
		}
		if err := n.readAddresses(); err != nil {
			return err
		}
		drift = iptables.Diff(iptables.Ruleset{Loopback: true}, iptables.Ruleset{Loopback: n.inPlace()})
		return nil
	})
	return drift, err
}

// Around makes the setting, adds the address and the routes if want has them and they are missing, calls write for the rules that need them, and
// then removes our routes if they are not wanted. If write fails, what was added stays: it does nothing without rules, and the next change finds it.
// Around sets lo up if it is down, as the container runtime will do soon: without it the kernel accepts no IPv6 route. It returns an error if a
// table of ours holds more foreign routes than were removed.
func Around(ns *netns.NS, want iptables.Ruleset, write func() error) error {
	var unwanted bool
	var left error
	if err := setDemux(ns); err != nil {
		return err
	}
	if want.Routing {
		if err := acceptSources(ns); err != nil {
			return err
		}
	}
	err := within(ns, func(n *namespace) (err error) {
		if err := n.setLoUp(); err != nil {
			return err
		}
		unwanted = !want.Routing && n.hasPolicy()
		if want.Loopback {
			err = n.addLoopback()
		}
		if err == nil && want.Routing {
			err = n.addPolicy()
		}
		left = unfinished(n.policy)
		return err
	})
	if err == nil {
		err = write()
	}
	switch {
	case err != nil:
		return err
	case !unwanted:
		return left
	}
	return within(ns, func(n *namespace) error { return errors.Join(n.removePolicy(), unfinished(n.policy)) })
}

// Remove removes everything that may be ours, and reports whether it found any. Addresses stay if another project has rules in
// the namespace: it uses the same ones.
func Remove(ctx context.Context, ns *netns.NS) (removed bool, err error) {
	others, err := foreign.Find(ctx, ns)
	if err != nil {
		return false, fmt.Errorf("remove addresses: %w", err)
	}
	err = within(ns, func(n *namespace) (err error) {
		if err := n.removePolicy(); err != nil {
			return err
		}
		if others == nil {
			removed, err = n.removeLoopback()
		}
		removed = removed || n.routed()
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
