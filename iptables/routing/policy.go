package routing

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"istio-pod-network-controller/iptables"
)

// holding is what a namespace has of a policy route in one family. Whole, that is one rule and one route.
type holding struct {
	iptables.PolicyRoute
	family int
	rules  []netlink.Rule
	routes []netlink.Route
}

// in says of an error which family it is about.
func (h holding) in(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("policy route of %s: %w", map[int]string{unix.AF_INET: "IPv4", unix.AF_INET6: "IPv6"}[h.family], err)
}

// readPolicy finds what there is of every policy route that may be ours.
func (n *namespace) readPolicy() (err error) {
	for _, p := range iptables.PolicyRoutes() {
		for _, family := range n.families() {
			h := holding{PolicyRoute: p, family: family}
			if h.rules, err = n.RuleListFiltered(family, h.rule(), netlink.RT_FILTER_MARK|netlink.RT_FILTER_TABLE); err != nil {
				return h.in(fmt.Errorf("list rules: %w", err))
			}
			if h.routes, err = n.RouteListFiltered(family, &netlink.Route{Table: p.Table}, netlink.RT_FILTER_TABLE); err != nil {
				return h.in(fmt.Errorf("list routes: %w", err))
			}
			n.policy = append(n.policy, h)
		}
	}
	return nil
}

// whole lists the policy routes that were there whole, in each family that the namespace has.
func (n *namespace) whole() []iptables.PolicyRoute {
	return slices.DeleteFunc(iptables.PolicyRoutes(), func(p iptables.PolicyRoute) bool {
		return slices.ContainsFunc(n.policy, func(h holding) bool {
			return h.PolicyRoute == p && (len(h.rules) != 1 || len(h.routes) != 1)
		})
	})
}

// others lists what was there of policy routes beside those of keep.
func (n *namespace) others(keep []iptables.PolicyRoute) []holding {
	return slices.DeleteFunc(slices.Clone(n.policy), func(h holding) bool {
		return slices.Contains(keep, h.PolicyRoute) || len(h.rules)+len(h.routes) == 0
	})
}

// addPolicy adds what is missing of want; the route comes before the rule that leads to it.
func (n *namespace) addPolicy(want []iptables.PolicyRoute) error {
	for _, h := range n.policy {
		if !slices.Contains(want, h.PolicyRoute) {
			continue
		}
		if err := n.complete(h); err != nil {
			return h.in(err)
		}
	}
	return nil
}

func (n *namespace) complete(h holding) error {
	if len(h.routes) == 0 {
		if err := n.RouteAdd(h.route(n.lo)); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add route to table %d: %w", h.Table, err)
		}
	}
	if len(h.rules) == 0 {
		if err := n.RuleAdd(h.rule()); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add rule for mark %d: %w", h.Mark, err)
		}
	}
	return n.remove(h.rules[min(1, len(h.rules)):], h.routes[min(1, len(h.routes)):]) // doubles
}

// removeOthers removes what was there of policy routes beside those of keep; absent is success.
func (n *namespace) removeOthers(keep []iptables.PolicyRoute) error {
	for _, h := range n.others(keep) {
		if err := n.remove(h.rules, h.routes); err != nil {
			return h.in(err)
		}
	}
	return nil
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

func (h holding) rule() *netlink.Rule {
	r := netlink.NewRule()
	r.Family, r.Mark, r.Table = h.family, h.Mark, h.Table
	return r
}

// route is "local default dev lo": every address is the namespace's own.
func (h holding) route(lo netlink.Link) *netlink.Route {
	all := &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
	if h.family == unix.AF_INET6 {
		all = &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	}
	return &netlink.Route{Family: h.family, LinkIndex: lo.Attrs().Index, Dst: all, Table: h.Table, Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST}
}
