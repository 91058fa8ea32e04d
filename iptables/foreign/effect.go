package foreign

import (
	"slices"
	"strings"
)

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

// targetEffects returns what the targets of iptables do, by their names. The effects of MARK, CONNMARK, CT and SET depend on their options.
func targetEffects() map[string]effect {
	return map[string]effect{
		"REJECT": drops, "REDIRECT": newDestination, "DNAT": newDestination, "NETMAP": newDestination, "DNPT": newDestination,
		"MASQUERADE": newSource, "SNAT": newSource, "SNPT": newSource, "TPROXY": newSocket, "NFQUEUE": queues, "TEE": copies,
		"NOTRACK": untracked, "HMARK": setsMark, "TCPOPTSTRIP": writesOptions,
	}
}

// harmlessTarget reports whether a target of iptables only counts, logs, or writes what decides nothing: TTL, hop limit, DSCP, ECN, MSS, checksum,
// or the priority for queues of a device.
func harmlessTarget(name string) bool {
	return slices.Contains([]string{
		"AUDIT", "CHECKSUM", "CLASSIFY", "DSCP", "ECN", "HL", "IDLETIMER", "LED", "LOG", "NFLOG", "RATEEST", "TCPMSS", "TOS", "TRACE", "TTL", "ULOG",
	}, name)
}

// expressionEffects returns what expressions of nf_tables do, by their names.
func expressionEffects() map[string]effect {
	return map[string]effect{
		"reject": drops, "redir": newDestination, "masq": newSource, "tproxy": newSocket, "queue": queues, "dup": copies, "fwd": newDevice,
		"notrack": untracked,
	}
}

// plainExpression reports whether an expression of nf_tables only counts, logs, or computes. unconditional reports whether every packet passes it.
func plainExpression(name string) (plain, unconditional bool) {
	switch name {
	case "counter", "log", "last":
		return true, true
	case "limit", "quota", "connlimit", "range", "byteorder", "dynset", "hash", "numgen", "rt", "osf", "xfrm", "socket", "tunnel", "inner", "fib":
		return true, false
	}
	return false, false
}
