package foreign

import "strings"

// effect is what a rule may do to packets of ours. Several may be set.
type effect uint32

// The effects, in the order in which a report names them.
const (
	drops effect = 1 << iota
	newDestination
	newSource
	newSocket
	queues
	copies
	newDevice
	untracked
	setsZone
	setsHelper
	setsTimeout
	setsMark
	setsConnMark
	writes
	writesOptions
	decidesByMap
)

// undoing are the effects that take packets away from the proxy again, behind our rules.
const undoing = newSocket | queues | copies | newDevice | writes

// effectWords returns the effects in words, in their order.
func effectWords() []string {
	return []string{
		"drops", "changes the destination", "changes the source", "gives packets to another socket", "queues packets for a program",
		"copies packets", "sends packets to another device", "switches connection tracking off", "sets a zone of connection tracking",
		"sets a helper of connection tracking", "sets a timeout of connection tracking", "sets a mark", "sets a connection's mark",
		"writes to packets", "writes TCP options", "decides by a map",
	}
}

// action is what a rule, or a chain, may do to packets of ours. unknown is what is not understood of it, "" for nothing.
type action struct {
	effects effect
	unknown string
}

func (a action) nothing() bool { return a == action{} }

// String returns what it does in words.
func (a action) String() string {
	var words []string
	for i, word := range effectWords() {
		if a.effects&(1<<i) != 0 {
			words = append(words, word)
		}
	}
	if a.unknown != "" {
		words = append(words, "is not understood: "+a.unknown)
	}
	return strings.Join(words, ", ")
}

// effectOf returns what a target of iptables or an expression of nf_tables does whose options do not matter. 0: it only counts, logs or computes, or
// writes nothing that decides: TTL, hop limit, DSCP, ECN, MSS, checksum, or the priority for queues of a device.
func effectOf(name string) (e effect, known bool) {
	switch name {
	case "REJECT", "reject":
		return drops, true
	case "REDIRECT", "DNAT", "NETMAP", "DNPT", "redir":
		return newDestination, true
	case "MASQUERADE", "SNAT", "SNPT", "masq":
		return newSource, true
	case "TPROXY", "tproxy":
		return newSocket, true
	case "NFQUEUE", "queue":
		return queues, true
	case "TEE", "dup":
		return copies, true
	case "fwd":
		return newDevice, true
	case "NOTRACK", "notrack":
		return untracked, true
	case "HMARK":
		return setsMark, true
	case "TCPOPTSTRIP":
		return writesOptions, true
	case "AUDIT", "CHECKSUM", "CLASSIFY", "DSCP", "ECN", "HL", "IDLETIMER", "LED", "LOG", "NFLOG", "RATEEST", "TCPMSS", "TOS", "TRACE", "TTL", "ULOG",
		"limit", "quota", "connlimit", "range", "byteorder", "dynset", "hash", "numgen", "rt", "osf", "xfrm", "socket", "tunnel", "inner", "fib":
		return 0, true
	}
	return 0, false
}

// byName adds the effect of a target or an expression, as kind says, and reports whether it has any.
func (r *reading) byName(kind, name string) bool {
	e, known := effectOf(name)
	if r.do(e); !known {
		r.puzzle(kind + " " + name)
	}
	return e != 0
}
