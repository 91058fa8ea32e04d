package iptables

import "strings"

// Hold says in which families new connections wait for the proxy. Where it listens in one family alone, it is waited for in vain in the other one.
type Hold uint8

// The holds. HoldBoth is their sum.
const (
	HoldNone Hold = 0
	HoldIPv4 Hold = 1
	HoldIPv6 Hold = 2
	HoldBoth      = HoldIPv4 | HoldIPv6
)

// commentHeld is the comment of the rules whose counters say how many packets were held.
const commentHeld = "held: it waits for the proxy"

// HeldPackets returns how many packets were held, by the lines of a listing. holds reports whether the rules hold.
func HeldPackets(lines []Line) (packets uint64, holds bool) {
	for _, l := range lines {
		if l.Packets != nil && strings.Contains(l.Why, commentHeld) {
			packets += *l.Packets
			holds = true
		}
	}
	return packets, holds
}

// hold returns the chain that has new connections wait for their proxy. While one of the proxy's ports has no listener, a packet that opens a connection
// to it is dropped, redirected or not: the client's kernel sends it again after a second, and again. Without the chain the pod's kernel would refuse the
// connection.
//
// The chain comes behind the redirects, where the kernel knows which socket takes the packet. What TPROXY diverts keeps its port, and is dropped without
// a listener by the chain that diverts.
func hold(s Spec, families Hold) []Chain {
	ports := s.ProxyPorts()
	if families == HoldNone || len(ports) == 0 {
		return nil
	}
	r := &rules{}
	r.add("packets of open connections", direct(), tcp(), not(opening()))
	if families != HoldBoth {
		other := map[Hold]uint32{HoldIPv4: IPv6, HoldIPv6: IPv4}[families]
		r.add("nobody listens in the other family", direct(), num(Family, other))
	}
	for _, p := range ports {
		r.add("somebody listens", direct(), tcp(), port(p), num(Socket, AnySocket))
		r.add(commentHeld, Action{Verb: Drop}, tcp(), port(p))
	}
	return chain(chainHold, Filter, Input, manglePriority, *r)
}
