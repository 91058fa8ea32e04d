package iptables

import "net/netip"

// Short names for actions and conditions, so that a rule in the code reads like a sentence.

func direct() Action                { return Action{Verb: Return} }
func redirectTo(port uint16) Action { return Action{Verb: Redirect, Port: port} }
func mark(m uint32) Action          { return Action{Verb: SetMark, Num: m} }
func localZone() Action             { return Action{Verb: Zone, Num: zoneLocal} }
func oneWay(number uint32) Action   { return Action{Verb: ZoneOneWay, Num: number} }
func jump(chain string) Action      { return Action{Verb: Jump, Chain: chain} }
func leaveTo(chain string) Action   { return Action{Verb: Goto, Chain: chain} }

func not(c Cond) Cond {
	c.Not = true
	return c
}

func num(f Field, n uint32) Cond        { return Cond{Field: f, Num: n} }
func proto(p uint32) Cond               { return num(Protocol, p) }
func tcp() Cond                         { return proto(TCP) }
func udp() Cond                         { return proto(UDP) }
func port(p uint16) Cond                { return num(DstPort, uint32(p)) }
func marked(m uint32) Cond              { return num(Mark, m) }
func state(bits uint32) Cond            { return num(State, bits) }
func status(bit uint32) Cond            { return num(Status, bit) }
func opening() Cond                     { return num(TCPFlags, OpeningFlags) }
func answering() Cond                   { return num(TCPFlags, AnsweringFlags) }
func iif(name string) Cond              { return Cond{Field: InIface, Text: name} }
func oif(name string) Cond              { return Cond{Field: OutIface, Text: name} }
func inLo() Cond                        { return num(InIndex, LoopbackIndex) }
func outLo() Cond                       { return num(OutIndex, LoopbackIndex) }
func addr(f Field, p netip.Prefix) Cond { return Cond{Field: f, Prefix: p} }
func inSet(f Field, set string) Cond    { return Cond{Field: f, Set: set} }
func family(p netip.Prefix) Cond        { return num(Family, familyOf(p.Addr())) }

func familyOf(a netip.Addr) (family uint32) {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}
