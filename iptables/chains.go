package iptables

import (
	"net/netip"
)

// Priorities put our chains slightly before those of others at the customary -100, -150 and -300: the first nat chain that binds a
// connection wins, and the first zone counts. The chain that diverts inbound packets comes slightly after -150: Istio's rules there
// save a packet's mark to its connection, and must not see our mark on a connection from outside.
const (
	natPriority    = -105
	manglePriority = -155
	divertPriority = -145
	rawPriority    = -305
)

// Names of our sets and chains.
const (
	setExclude4   = "exclude-cidr4"
	setExclude6   = "exclude-cidr6"
	setInclude4   = "include-cidr4"
	setInclude6   = "include-cidr6"
	setSources4   = "exclude-source4"
	setSources6   = "exclude-source6"
	setExcludeOut = "exclude-outbound-ports"
	setIncludeOut = "include-outbound-ports"
	setExcludeIn  = "exclude-inbound-ports"
	setIncludeIn  = "include-inbound-ports"
	setOwnPorts   = "proxy-ports"

	chainOutbound   = "outbound"
	chainInbound    = "inbound"
	chainDivert     = "inbound-divert"
	chainMark       = "outbound-mark"
	chainReusedOut  = "outbound-reused"
	chainReusedIn   = "inbound-reused"
	chainDNSOut     = "dns-zones-outbound"
	chainDNSIn      = "dns-zones-inbound"
	chainHold       = "hold"
	chainLostOut    = "outbound-lost" // the last five have no hook
	chainLostIn     = "inbound-lost"
	chainMarkLo     = "outbound-mark-lo"
	chainLookups    = "dns-zones-lookups"
	chainAway       = "outbound-away"
	commentExcluded = "excluded interfaces"
)

// passthrough returns the source addresses that Istio's proxy binds when it hands inbound traffic to the application, one of each
// family.
func passthrough() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("127.0.0.6/32"), netip.MustParsePrefix("::6/128")}
}

// chain returns a chain, or none if it has no rules.
func chain(name string, kind ChainType, hook Hook, priority int32, rules rules) []Chain {
	if len(rules) == 0 {
		return nil
	}
	return []Chain{{Name: name, Type: kind, Hook: hook, Priority: priority, Rules: rules}}
}

// rules is a chain that is being built.
type rules []Rule

func (r *rules) add(comment string, action Action, conds ...Cond) {
	*r = append(*r, Rule{Conds: conds, Action: action, Comment: comment})
}

// excludeInterfaces adds a rule for each interface that leaves its packets alone.
func (r *rules) excludeInterfaces(iface func(string) Cond, names []string) {
	for _, name := range names {
		r.add(commentExcluded, direct(), iface(name))
	}
}

// openConnections adds a rule that leaves connections alone that are older than the rules. Connection tracking starts with the rules: it
// takes the first packet that it sees of such a connection for a new one (nf_conntrack_tcp_loose), and a redirect would break it.
func (r *rules) openConnections() {
	r.add("connections that are older than the rules", direct(), tcp(), not(opening()))
}

// commentInName is the comment of the rules for what the proxy sends to the application with a client's address as its source.
const commentInName = "the proxy's connections in a client's name"
