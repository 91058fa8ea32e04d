// Package routing puts a Ruleset's addresses and policy routes into a network namespace over rtnetlink: what a packet
// filter cannot hold, and what every backend needs alike.
//
// The routing table is our own: whatever stands in it or leads to it and is not exactly what we would write is drift. Rules,
// routes and tables of others are not touched. What is read is bounded, and what is removed is named by numbers.
package routing

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/foreign"
)

// limit is what one visit to a namespace may take; the kernel answers in microseconds.
const limit = 2 * time.Second

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

// Prepare adds the addresses and routes of want that are missing. It comes before the rules that need them. It sets lo up where
// it is down, as the container runtime is about to do: without it the kernel takes no IPv6 route.
func Prepare(ns *netns.NS, want iptables.Ruleset) (Change, error) {
	c := Change{ns: ns, want: want.Routing}
	err := within(ns, func(n *namespace) (err error) {
		if err := n.raise(); err != nil {
			return err
		}
		c.before, c.spare = n.whole(), len(n.others(want.Routing)) > 0
		if c.added, err = n.addLoopback(want.Loopback); err == nil {
			err = n.addPolicy(want.Routing)
		}
		return err
	})
	if err != nil {
		return c, errors.Join(err, c.Undo())
	}
	return c, nil
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

// Remove takes all away that may be ours, and reports whether there was anything. Addresses stay where another project has
// rules: it adds the same ones, and needs them.
func Remove(ns *netns.NS) (removed bool, err error) {
	others, err := foreign.FindUntil(time.Now().Add(limit), ns)
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
		removed = removed || len(n.whole()) > 0
		return err
	})
	return removed, err
}

// within has f look at the namespace and change it, on a thread inside.
func within(ns *netns.NS, f func(*namespace) error) error {
	return ns.Do(func() error {
		n := &namespace{end: time.Now().Add(limit)}
		if err := n.look(); err != nil {
			return err
		}
		return f(n)
	})
}
