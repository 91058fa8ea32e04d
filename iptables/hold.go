package iptables

import "strings"

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

// hold returns the chain that has new connections wait for their proxy. A packet that opens a connection to one of the proxy's ports, where
// somebody has led it or the client itself, is dropped while nobody listens there: the client's kernel sends it again after a second, and again. Without
// the chain the pod's kernel would refuse the connection.
//
// The chain comes behind the redirects, where the kernel knows which socket takes the packet. What TPROXY diverts keeps its port, and is dropped without
// a listener by the chain that diverts.
func hold(s Spec) []Chain {
	ports := s.ProxyPorts()
	if len(ports) == 0 {
		return nil
	}
	r := &rules{}
	r.add("packets of open connections", direct(), tcp(), not(opening()))
	for _, p := range ports {
		r.add("somebody listens", direct(), tcp(), port(p), num(Socket, AnySocket))
		r.add(commentHeld, Action{Verb: Drop}, tcp(), port(p))
	}
	return chain(chainHold, Filter, Input, manglePriority, *r)
}
