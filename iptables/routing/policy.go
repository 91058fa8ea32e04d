package routing

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
)

// Policy lists those of want that the namespace holds whole: one rule and one route of each family that it has.
func Policy(ns *netns.NS, want []iptables.PolicyRoute) ([]iptables.PolicyRoute, error) {
	found := slices.Clone(want)
	err := eachFamily(ns, want, func(n *namespace, family int, p iptables.PolicyRoute) error {
		rules, routes, err := n.policy(family, p)
		if len(rules) != 1 || len(routes) != 1 {
			found = slices.DeleteFunc(found, func(f iptables.PolicyRoute) bool { return f == p })
		}
		return err
	})
	return found, err
}

// AddPolicy adds what is missing of want; the route comes before the rule that leads to it.
func AddPolicy(ns *netns.NS, want []iptables.PolicyRoute) error {
	return eachFamily(ns, want, func(n *namespace, family int, p iptables.PolicyRoute) error {
		rules, routes, err := n.policy(family, p)
		if err != nil {
			return err
		}
		if len(routes) == 0 {
			if err := n.RouteAdd(n.route(family, p)); err != nil && !errors.Is(err, unix.EEXIST) {
				return fmt.Errorf("add route to table %d: %w", p.Table, err)
			}
		}
		if len(rules) == 0 {
			if err := n.RuleAdd(rule(family, p)); err != nil && !errors.Is(err, unix.EEXIST) {
				return fmt.Errorf("add rule for mark %d: %w", p.Mark, err)
			}
		}
		return n.remove(rules[min(1, len(rules)):], routes[min(1, len(routes)):]) // doubles
	})
}

// RemovePolicy removes routes that are not wanted any more; absent is success.
func RemovePolicy(ns *netns.NS, unwanted []iptables.PolicyRoute) error {
	return eachFamily(ns, unwanted, func(n *namespace, family int, p iptables.PolicyRoute) error {
		rules, routes, err := n.policy(family, p)
		return errors.Join(err, n.remove(rules, routes))
	})
}

func eachFamily(ns *netns.NS, list []iptables.PolicyRoute, f func(n *namespace, family int, p iptables.PolicyRoute) error) error {
	if len(list) == 0 {
		return nil
	}
	return withNamespace(ns, func(n *namespace) error {
		for _, p := range list {
			for _, family := range n.families() {
				if err := f(n, family, p); err != nil {
					return fmt.Errorf("policy route of %s: %w", map[int]string{unix.AF_INET: "IPv4", unix.AF_INET6: "IPv6"}[family], err)
				}
			}
		}
		return nil
	})
}

func (n *namespace) remove(rules []netlink.Rule, routes []netlink.Route) error {
	for i := range rules {
		if err := n.RuleDel(&rules[i]); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove rule for mark %d: %w", rules[i].Mark, err)
		}
	}
	for i := range routes {
		if err := n.RouteDel(&routes[i]); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("remove route from table %d: %w", routes[i].Table, err)
		}
	}
	return nil
}

// policy gives the rules and routes of a family that are p's.
func (n *namespace) policy(family int, p iptables.PolicyRoute) ([]netlink.Rule, []netlink.Route, error) {
	rules, err := n.RuleListFiltered(family, rule(family, p), netlink.RT_FILTER_MARK|netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, nil, fmt.Errorf("list rules: %w", err)
	}
	routes, err := n.RouteListFiltered(family, &netlink.Route{Table: p.Table}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, nil, fmt.Errorf("list routes: %w", err)
	}
	return rules, routes, nil
}

func rule(family int, p iptables.PolicyRoute) *netlink.Rule {
	r := netlink.NewRule()
	r.Family, r.Mark, r.Table = family, p.Mark, p.Table
	return r
}

// route is "local default dev lo": every address is the namespace's own.
func (n *namespace) route(family int, p iptables.PolicyRoute) *netlink.Route {
	all := &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
	if family == unix.AF_INET6 {
		all = &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	}
	return &netlink.Route{Family: family, LinkIndex: n.lo.Attrs().Index, Dst: all, Table: p.Table, Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST}
}
