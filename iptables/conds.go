package iptables

import "net/netip"

// Short names for the vocabulary of rules, so that a rule reads like the sentence it stands for.

func leave() Action         { return Action{Verb: Return} }
func to(port uint16) Action { return Action{Verb: Redirect, Port: port} }

func not(c Cond) Cond {
	c.Not = true
	return c
}

func num(f Field, n uint32) Cond        { return Cond{Field: f, Num: n} }
func tcp() Cond                         { return num(Protocol, TCP) }
func port(p uint16) Cond                { return num(DstPort, uint32(p)) }
func oif(name string) Cond              { return Cond{Field: OutIface, Text: name} }
func addr(f Field, p netip.Prefix) Cond { return Cond{Field: f, Prefix: p} }
func inSet(f Field, set string) Cond    { return Cond{Field: f, Set: set} }
func family(p netip.Prefix) Cond        { return num(Family, familyOf(p.Addr())) }
func (s Set) family() Cond {
	return num(Family, map[SetKind]uint32{IPv4Set: IPv4, IPv6Set: IPv6}[s.Kind])
}

func familyOf(a netip.Addr) (family uint32) {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}
