package routing

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/rawnetlink"
	"istio-pod-network-controller/iptables"
)

const (
	// rulePriority puts our rule behind the rule for local addresses, and before foreign rules that choose an interface.
	rulePriority = 1000
	// maxRead bounds how many rules and routes are read. Rules come in order of priority.
	maxRead = 4096
	// sizes of the headers in front of the attributes (struct fib_rule_hdr, struct rtmsg)
	headerSize = 12
	// invert is FIB_RULE_INVERT.
	invert = 2
	// exclusive are the flags of an add that fails if an equal rule or route is there.
	exclusive = unix.NLM_F_CREATE | unix.NLM_F_EXCL
)

// policyState is what one family has of our policy route: all rules to its table, and all routes in it.
type policyState struct {
	family        byte
	rules, routes []found
	// unread reports whether the table has more routes than were read.
	unread bool
}

// found is a rule or a route. exact means that every attribute is as we write it.
type found struct {
	exact  bool
	remove rawnetlink.Request
}

// complete reports whether the table has our rule and our route, and nothing else.
func (h policyState) complete() bool { return exactly(h.rules) && exactly(h.routes) && !h.unread }

// errUnfinished means that a table of ours had more foreign routes than one visit removes.
var errUnfinished = fmt.Errorf("it had more than %d routes that are not ours, and some are left: the next check goes on", maxRead)

// unfinished returns an error if routes were left unread, and so were not removed.
func unfinished(policy []policyState) error {
	for _, h := range policy {
		if h.unread {
			return h.wrap(fmt.Errorf("clean table %d: %w", iptables.RouteTable, errUnfinished))
		}
	}
	return nil
}

// exactly reports whether there is what is ours, and nothing else. A list may have it twice.
func exactly(f []found) bool {
	return len(f) > 0 && !slices.ContainsFunc(f, func(one found) bool { return !one.exact })
}

// wrap adds to an error which family it is about.
func (h policyState) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("policy route of %s: %w", h.name(), err)
}

func (h policyState) name() string {
	return map[byte]string{unix.AF_INET: "IPv4", unix.AF_INET6: "IPv6"}[h.family]
}

// families returns the address families of the namespace. IPv6 is on for lo if the kernel has put ::1 there. While lo is down this is unknown, and
// counts as on.
func (n *namespace) families() []byte {
	if !n.up || n.ipv6 {
		return []byte{unix.AF_INET, unix.AF_INET6}
	}
	return []byte{unix.AF_INET}
}

// missing reports whether an error of a list says that there is nothing to list: no such table, or no IPv6 in the kernel (ipv6.disable=1).
func missing(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EAFNOSUPPORT)
}

// readPolicy reads the rules and routes that may be ours.
func (n *namespace) readPolicy() (err error) {
	n.policy = nil
	for _, family := range n.families() {
		h := policyState{family: family}
		if h.routes, h.unread, err = n.list(unix.RTM_GETROUTE, h, [][]byte{table()}, h.route); err != nil {
			return h.wrap(fmt.Errorf("list routes: %w", err))
		}
		if h.rules, err = n.readRules(h); err != nil {
			return h.wrap(fmt.Errorf("list rules: %w", err))
		}
		h.unread = h.unread && len(h.routes) > 1 // kernels before 4.20 also return routes of other tables
		n.policy = append(n.policy, h)
	}
	return nil
}

// readRules returns the rules that lead to the table. The kernel is asked for ours alone where a list is no proof that it is missing: a pod may have
// more rules in front of ours than are read; and while somebody changes rules, a list may lack another rule, or have it twice, and the
// kernel does not say so (Linux 6.18). A namespace without our route needs no proof.
func (n *namespace) readRules(h policyState) ([]found, error) {
	rules, unread, err := n.list(unix.RTM_GETRULE, h, nil, h.rule)
	if err != nil || !unread && !exactly(h.routes) || slices.ContainsFunc(rules, func(f found) bool { return f.exact }) {
		return rules, err
	}
	there, err := n.hasRule(h)
	if there {
		rules = append(rules, found{exact: true, remove: h.ourRule(unix.RTM_DELRULE, 0)})
	}
	return rules, err
}

// hasRule reports whether our rule is there. No request reads one rule, so it is an exclusive add: the kernel refuses an equal rule, and an
// add that it accepts is taken back.
func (n *namespace) hasRule(h policyState) (bool, error) {
	err := n.change(h.ourRule(unix.RTM_NEWRULE, exclusive))
	if err == nil {
		return false, n.change(h.ourRule(unix.RTM_DELRULE, 0))
	}
	if errors.Is(err, unix.EEXIST) {
		return true, nil
	}
	return false, err
}

// list reads rules or routes, and returns the ones of the policy route's table. unread reports whether there are more.
func (n *namespace) list(
	kind uint16, h policyState, attributes [][]byte, take func([]byte, map[uint16][]byte) found,
) (out []found, unread bool, err error) {
	request := rawnetlink.Request{Kind: kind, Header: h.header(0, 0, 0), Attributes: attributes}
	err = rawnetlink.Uninterrupted(func() error {
		read := 0
		out = nil
		return n.conn.Dump(n.end, request, func(body []byte) bool {
			read++
			unread = read > maxRead
			if !unread && len(body) >= headerSize && body[0] == h.family {
				if a := rawnetlink.Attributes(body[headerSize:]); rawnetlink.NativeEndian(a[unix.RTA_TABLE]) == iptables.RouteTable {
					out = append(out, take(body[:headerSize], a))
				}
			}
			return !unread
		})
	})
	if missing(err) {
		return nil, false, nil
	}
	return out, unread, err
}

// header serves as struct rtmsg and as struct fib_rule_hdr. The table's number does not fit in, so it is an attribute.
func (h policyState) header(protocol, scope, kind byte) []byte {
	return []byte{h.family, 0, 0, 0, 0, protocol, scope, kind, 0, 0, 0, 0}
}

// table is the attribute of rules and routes, of the same kind, that names our table.
func table() []byte { return rawnetlink.Number(unix.RTA_TABLE, iptables.RouteTable) }

// rule reads a rule that leads to our table.
func (h policyState) rule(header []byte, attributes map[uint16][]byte) found {
	plain := header[1]|header[2]|header[3] == 0 && header[7] == unix.FR_ACT_TO_TBL && binary.NativeEndian.Uint32(header[8:])&invert == 0
	return found{exact: plain && h.exactRule(attributes), remove: rawnetlink.Request{
		Kind: unix.RTM_DELRULE, Header: h.header(0, 0, 0),
		Attributes: [][]byte{table(), rawnetlink.Number(unix.FRA_PRIORITY, rawnetlink.NativeEndian(attributes[unix.FRA_PRIORITY]))},
	}}
}

// exactRule compares all attributes of a rule. An attribute that we do not write restricts the rule.
func (h policyState) exactRule(attributes map[uint16][]byte) bool {
	want := map[uint16]uint32{
		unix.FRA_TABLE: iptables.RouteTable, unix.FRA_FWMARK: iptables.RouteMark, unix.FRA_FWMASK: 1<<32 - 1, unix.FRA_PRIORITY: rulePriority,
		unix.FRA_SUPPRESS_PREFIXLEN: 1<<32 - 1, // none
	}
	for kind := range attributes {
		if _, ok := want[kind]; !ok && kind != unix.FRA_PROTOCOL {
			return false
		}
	}
	for kind, n := range want {
		if value, ok := attributes[kind]; kind != unix.FRA_SUPPRESS_PREFIXLEN && !ok || ok && rawnetlink.NativeEndian(value) != n {
			return false
		}
	}
	return true
}

// route reads a route in our table.
func (h policyState) route(header []byte, attributes map[uint16][]byte) found {
	remove := h.header(0, unix.RT_SCOPE_NOWHERE, 0)
	remove[1], remove[3] = header[1], header[3]
	f := found{remove: rawnetlink.Request{Kind: unix.RTM_DELROUTE, Header: remove, Attributes: [][]byte{table()}}}
	if dst := attributes[unix.RTA_DST]; len(dst) > 0 {
		f.remove.Attributes = append(f.remove.Attributes, rawnetlink.Bytes(unix.RTA_DST, dst))
	}
	plain := []uint16{unix.RTA_TABLE, unix.RTA_OIF, unix.RTA_PRIORITY, unix.RTA_CACHEINFO, unix.RTA_PREF}
	f.exact = header[1]|header[2]|header[3] == 0 && header[7] == unix.RTN_LOCAL && rawnetlink.NativeEndian(attributes[unix.RTA_OIF]) == loIndex
	for kind := range attributes {
		f.exact = f.exact && slices.Contains(plain, kind)
	}
	return f
}

// routed reports whether rule and route are complete in each family of the namespace.
func (n *namespace) routed() bool {
	return !slices.ContainsFunc(n.policy, func(h policyState) bool { return !h.complete() })
}

// hasPolicy reports whether any family has a rule or a route that may be ours.
func (n *namespace) hasPolicy() bool {
	return slices.ContainsFunc(n.policy, func(h policyState) bool { return len(h.rules)+len(h.routes) > 0 })
}

// addPolicy completes rule and route in each family.
func (n *namespace) addPolicy() error {
	for _, h := range n.policy {
		if err := n.complete(h); err != nil {
			return h.wrap(err)
		}
	}
	return nil
}

// ourRule is a request about our rule.
func (h policyState) ourRule(kind, flags uint16) rawnetlink.Request {
	return rawnetlink.Request{Kind: kind, Flags: flags, Header: h.header(0, 0, unix.FR_ACT_TO_TBL), Attributes: [][]byte{
		table(), rawnetlink.Number(unix.FRA_FWMARK, iptables.RouteMark), rawnetlink.Number(unix.FRA_FWMASK, 1<<32-1), rawnetlink.Number(unix.FRA_PRIORITY, rulePriority),
	}}
}

// complete replaces all rules and routes by ours. The route comes before the rule that leads to it.
func (n *namespace) complete(h policyState) error {
	scope := map[byte]byte{unix.AF_INET: unix.RT_SCOPE_HOST}[h.family]
	route := rawnetlink.Request{
		Kind: unix.RTM_NEWROUTE, Flags: exclusive, Header: h.header(unix.RTPROT_BOOT, scope, unix.RTN_LOCAL),
		Attributes: [][]byte{table(), rawnetlink.Number(unix.RTA_OIF, loIndex)},
	}
	if err := n.replace(h.routes, route); err != nil {
		return fmt.Errorf("write route of table %d: %w", iptables.RouteTable, err)
	}
	if err := n.replace(h.rules, h.ourRule(unix.RTM_NEWRULE, exclusive)); err != nil {
		return fmt.Errorf("write rule for mark %d: %w", iptables.RouteMark, err)
	}
	return nil
}

// replace removes have and adds want, unless have is exactly that.
func (n *namespace) replace(have []found, want rawnetlink.Request) error {
	if exactly(have) {
		return nil
	}
	if err := n.remove(have); err != nil {
		return err
	}
	if err := n.change(want); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

// removePolicy removes all rules and routes that may be ours; absent is success.
func (n *namespace) removePolicy() error {
	for _, h := range n.policy {
		if err := errors.Join(n.remove(h.rules), n.remove(h.routes)); err != nil {
			return h.wrap(err)
		}
	}
	return nil
}

func (n *namespace) remove(all []found) error {
	for _, f := range all {
		if err := n.change(f.remove); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("remove what stands in its place: %w", err)
		}
	}
	return nil
}
