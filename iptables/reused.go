package iptables

import (
	"net/netip"
	"slices"
)

// lost returns a chain that drops what a nat chain would redirect if it saw it. It is asked about packets that open a connection.
//
// A nat chain sees one packet of each connection, which conntrack takes for its first. Conntrack may hold a connection whose end it
// did not see: the rules were missing then, and conntrack with them, or the peer had gone. It holds it for minutes, at most for days
// (nf_conntrack_tcp_timeout_established). A client that uses the same addresses and ports again is then taken for a part of the
// old connection (the tables of nf_conntrack_proto_tcp.c: ignored, or invalid), no nat chain sees its packets, and it would pass the proxy by.
// The state of such a packet is established, invalid, or new if the old connection was seen in one direction only. A new connection that a
// nat chain will still see is not confirmed (IPS_CONFIRMED).
//
// Packets on lo are left alone: they stay in the pod. So are packets of connections that our nat chain has redirected. Their answers come
// from a port of the proxy. Whoever may write entries of conntrack can give any connection another destination, so that alone proves nothing.
// Packets that conntrack was told to leave alone (NOTRACK) are seen by no nat chain either.
func lost(s Spec, name string, lo Cond, nat rules) []Chain {
	seen := slices.DeleteFunc(slices.Clone(nat), func(r Rule) bool {
		return r.has(not(opening())) || !r.mayBeTCP() || r.has(lo) || toLoopback(s, r) || r.has(marked(markDiverted))
	})
	ports := seen.redirectPorts()
	if len(ports) == 0 {
		return nil
	}
	r := &rules{}
	r.add("new connections, which the nat chain will see", direct(), not(status(Confirmed)))
	for _, port := range ports {
		r.add("redirected already", direct(), tcp(), status(Translated), num(ReplySrcPort, uint32(port)))
	}
	for _, rule := range seen {
		if rule.Action.Verb == Redirect {
			r.add("no nat chain would see this connection", Action{Verb: Drop}, append(slices.Clip(rule.Conds), state(lostStates))...)
		} else {
			r.add(rule.Comment, rule.Action, rule.Conds...)
		}
	}
	return chain(name, Filter, "", manglePriority, *r)
}

// reused returns a chain that asks lost, if there is one. All packets of the namespace come to it.
func reused(name string, hook Hook, lo Cond, lost []Chain) []Chain {
	r := &rules{}
	r.ask(lost, not(lo))
	return chain(name, Filter, hook, manglePriority, *r)
}

// ask adds a rule that asks lost, if there is one. No packet on lo may meet it.
func (r *rules) ask(lost []Chain, also ...Cond) {
	for _, c := range lost {
		r.add("packets that open a connection", jump(c.Name), append(also, tcp(), opening())...)
	}
}

// lostStates are the states of packets that no nat chain sees, of connections that are not redirected.
const lostStates = Invalid | New | Established | Untracked

// redirectPorts returns the ports of the proxy that rules redirect to, each once.
func (r rules) redirectPorts() (ports []uint16) {
	for _, rule := range r {
		if rule.Action.Verb == Redirect && rule.Action.Port != refusedPort && !slices.Contains(ports, rule.Action.Port) {
			ports = append(ports, rule.Action.Port)
		}
	}
	return ports
}

func (r Rule) has(c Cond) bool { return slices.Contains(r.Conds, c) }

func (r Rule) mayBeTCP() bool { return !r.has(udp()) && !r.has(not(tcp())) }

// toLoopback reports whether a rule is about packets to the pod's own loopback address, which are always on lo.
func toLoopback(s Spec, r Rule) bool {
	return slices.ContainsFunc(s.loopbacks(), func(lo netip.Prefix) bool { return r.has(addr(DstAddr, lo)) })
}
