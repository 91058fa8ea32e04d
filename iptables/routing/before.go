package routing

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/rawnetlink"
	"istio-pod-network-controller/iptables"
)

// maxBefore bounds the lines that Before returns.
const maxBefore = 10

// Before returns the policy rules of others that stand in front of ours and may lead packets with our mark elsewhere, one line each. A rule without a
// priority that comes later than ours is such a one: the kernel gives it the priority of its second rule less one, and that is ours.
func Before(ns *netns.NS) (lines []string, err error) {
	err = inside(ns, func(n *namespace) error {
		if err := n.readAddresses(); err != nil {
			return err
		}
		lines = nil
		for _, family := range n.families() {
			h := policyState{family: family}
			before, err := n.before(h)
			if err != nil {
				return h.wrap(fmt.Errorf("list rules: %w", err))
			}
			lines = append(lines, before...)
		}
		return nil
	})
	return lines[:min(len(lines), maxBefore)], err
}

// before returns the lines of one family. Without our rule there are none: nothing is in front of it.
func (n *namespace) before(h policyState) (lines []string, err error) {
	err = rawnetlink.Uninterrupted(func() error {
		var found []string
		read := 0
		lines = nil
		return n.conn.Dump(n.end, rawnetlink.Request{Kind: unix.RTM_GETRULE, Header: h.header(0, 0, 0)}, func(body []byte) bool {
			read++
			if len(body) < headerSize || body[0] != h.family {
				return read < maxRead
			}
			a := rawnetlink.Attributes(body[headerSize:])
			switch {
			case rawnetlink.NativeEndian(a[unix.FRA_TABLE]) == iptables.RouteTable && h.rule(body[:headerSize], a).exact:
				lines = found
				return false
			case takes(body[:headerSize], a) && len(found) < maxBefore:
				found = append(found, fmt.Sprintf("policy rule of %s, priority %d: %s", h.name(), rawnetlink.NativeEndian(a[unix.FRA_PRIORITY]), does(body[7], rawnetlink.NativeEndian(a[unix.FRA_TABLE]))))
			}
			return read < maxRead
		})
	})
	if missing(err) {
		return nil, nil
	}
	return lines, err
}

// takes reports whether a rule may decide about a packet with our mark: it does something else than look up the table of local addresses, and asks for
// no other mark.
func takes(header []byte, a map[uint16][]byte) bool {
	switch action := header[7]; {
	case action == unix.FR_ACT_NOP, action == unix.FR_ACT_GOTO, action == unix.FR_ACT_TO_TBL && rawnetlink.NativeEndian(a[unix.FRA_TABLE]) == unix.RT_TABLE_LOCAL:
		return false
	}
	mask := rawnetlink.NativeEndian(a[unix.FRA_FWMASK])
	inverted := binary.NativeEndian.Uint32(header[8:])&invert != 0
	return inverted || iptables.RouteMark&mask == rawnetlink.NativeEndian(a[unix.FRA_FWMARK])&mask
}

func does(action byte, table uint32) string {
	if action == unix.FR_ACT_TO_TBL {
		return fmt.Sprintf("to table %d", table)
	}
	return "lets nothing through"
}
