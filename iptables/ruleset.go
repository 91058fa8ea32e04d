package iptables

import "net/netip"

// TableName is the name of our one nftables table in a namespace, and the prefix of our other names there.
const TableName = "pod-network-controller"

// SecondTableName is the name of the table that holds our rules while a process of the pod owns the first one (NFT_TABLE_F_OWNER).
const SecondTableName = TableName + "-2"

// Ruleset is everything that we own in one network namespace. All backends render the same Ruleset, so they cannot differ.
type Ruleset struct {
	// Table is the name of the table that holds them in the kernel; empty means TableName.
	Table  string
	Sets   []Set
	Chains []Chain
	// Loopback has LoopbackAddr added to lo, if the namespace has IPv6.
	Loopback bool
	// Routing sends packets with RouteMark through RouteTable, whose only route delivers everything to the namespace itself: a rule and a route
	// for each family.
	Routing bool
	// Unsourced is set of a namespace whose settings defeat Routing: net.ipv4.conf.all.src_valid_mark without accept_local. It is never wanted.
	Unsourced bool
}

// Set is a named set of ports, of ranges of ports, or of prefixes of one family. It is canonical: sorted, without duplicates and overlaps. In a set of
// ports each range is one port.
type Set struct {
	Name     string
	Kind     SetKind
	Ranges   []PortRange
	Prefixes []netip.Prefix
}

// SetKind says what a set holds.
type SetKind uint8

// The kinds of sets.
const (
	PortSet SetKind = iota + 1
	IPv4Set
	IPv6Set
	RangeSet
)

// Chain is an ordered list of rules at a hook of the kernel. The first rule that decides ends it. If no rule decides, the packet
// stays as it is. A chain without a hook is asked by a rule with the verb Jump or Goto, and has the type and priority of that rule's chain.
type Chain struct {
	Name     string
	Type     ChainType
	Hook     Hook
	Priority int32
	Rules    []Rule
}

// ChainType is nftables' chain type.
type ChainType string

// Hook is the kernel's hook that a chain is attached to.
type Hook string

// The chain types and hooks in use. A chain of type route makes the kernel route a packet again when a rule has changed its mark.
const (
	NAT        ChainType = "nat"
	Filter     ChainType = "filter"
	Route      ChainType = "route"
	Output     Hook      = "output"
	Prerouting Hook      = "prerouting"
	Input      Hook      = "input"
)

// Rule applies Action to packets that meet all of Conds. Counter is what the kernel has counted; rules are compared without
// it.
type Rule struct {
	Conds   []Cond
	Action  Action
	Comment string
	Counter Counter
	// Uncounted reports whether the rule has no counter in the kernel. All rules of Rules have one.
	Uncounted bool
}

// Counter is the number of packets and bytes that a rule has matched; in a nat chain, of the first packet of each connection.
type Counter struct{ Packets, Bytes uint64 }

// Cond compares one field of a packet with one value, or with a named set where Set is not empty.
type Cond struct {
	Field  Field
	Not    bool
	Set    string
	Num    uint32       // ports, protocol, owner ids, family, marks, bits of states
	Last   uint32       // the end of a range of users that begins with Num; 0 is Num alone
	Text   string       // interface names
	Prefix netip.Prefix // addresses
}

// Field is a property of a packet that a Cond compares.
type Field uint8

// The fields, and the member of Cond that holds their value.
const (
	Family       Field = iota + 1 // Num: IPv4 or IPv6
	Protocol                      // Num: TCP, UDP, ICMP or ICMPv6
	InIface                       // Text
	OutIface                      // Text
	InIndex                       // Num: an interface's index, which stays when its name changes
	OutIndex                      // Num
	SrcAddr                       // Prefix or Set; a Family condition precedes it
	DstAddr                       // Prefix or Set; a Family condition precedes it
	SrcPort                       // Num or Set; a Protocol condition precedes it
	DstPort                       // Num or Set; a Protocol condition precedes it
	OwnerUID                      // Num, or Num to Last: the uid of the socket's owner as seen in the pod
	OwnerGID                      // Num
	Mark                          // Num: the packet's mark
	ConnMark                      // Num: the connection's mark
	State                         // Num: one or more of the states below, one of which must hold
	SrcType                       // Num: the type of the source address in the namespace
	TCPFlags                      // Num: what FIN, SYN, RST and ACK must be together; a Protocol condition precedes it
	Direction                     // Num: whether the packet is in the direction of replies
	Status                        // Num: one or more of the bits below of the connection's status, one of which must be set
	ReplySrcPort                  // Num: the port that the connection's answers come from, before any address is rewritten
	DstType                       // Num: the type of the destination address in the namespace
	Socket                        // Num: AnySocket; a socket of the namespace takes the packet: its connection's, else a listening one
	Transparent                   // Num: TransparentSocket; such a socket of the namespace takes the packet
)

// Values of Family (the kernel's NFPROTO numbers), of Protocol (IANA's), of State (the kernel's bits), of SrcType (rtnetlink's
// types of routes), of TCPFlags (TCP's bits), of Direction (the kernel's IP_CT_DIR numbers), and of Status (the kernel's IPS bits).
const (
	IPv4 = 2
	IPv6 = 10

	TCP    = 6
	UDP    = 17
	ICMP   = 1
	ICMPv6 = 58

	// LoopbackIndex is the index of the loopback interface in every network namespace (LOOPBACK_IFINDEX), whatever its name.
	LoopbackIndex = 1

	Invalid     = 1
	Established = 2
	Related     = 4
	New         = 8
	Untracked   = 64

	Local = 2

	// OpeningFlags are the flags of a packet that opens a connection, of those in OpeningMask; AnsweringFlags are the flags of the answer to it.
	OpeningFlags   = 0x02
	AnsweringFlags = 0x12
	OpeningMask    = 0x17

	Reply = 1

	Confirmed  = 0x08 // IPS_CONFIRMED: an earlier packet of the connection has gone its way
	Translated = 0x20 // IPS_DST_NAT: the client sees another destination

	// AnySocket is the highest value of a socket's property "transparent": it is 0 or 1, so every socket has at most this. A packet without
	// a socket has none, and does not match.
	AnySocket = 1
	// TransparentSocket is the property's value for a socket that also takes packets to addresses that are not its own.
	TransparentSocket = 1
)

// IsBits reports whether a condition on the field names bits, one of which is enough.
func (f Field) IsBits() bool { return f == State || f == Status }

// Action is what happens to a packet that a rule matches.
type Action struct {
	Verb Verb
	Port uint16 // of Redirect and TProxy
	Num  uint32 // the mark of SetMark, Divert and TProxy; the zone of Zone and ZoneOneWay
	// Chain is the chain that Jump and Goto ask.
	Chain string
}

// Verb names an action.
type Verb uint8

// The verbs. All but SetMark and Jump decide: no later rule of the chain sees the packet. In a chain without a hook, Return and the verbs
// that only set something end that chain: the rule behind the Jump follows.
const (
	// Return leaves the packet as it is.
	Return Verb = iota + 1
	// Redirect sends the connection to a local port.
	Redirect
	// Drop drops the packet.
	Drop
	// SetMark marks the packet; the next rule follows.
	SetMark
	// Divert marks the packet. In iptables no later rule of the same table sees it: a rule of others could save the mark.
	Divert
	// TProxy gives the packet to the socket that listens on a local port, and marks it. Without such a socket, nftables goes on to the
	// next rule while iptables drops the packet. A Drop behind it makes them equal.
	TProxy
	// SaveMark copies the packet's mark to its connection.
	SaveMark
	// RestoreMark copies the connection's mark to the packet.
	RestoreMark
	// Zone puts the connection into a zone of connection tracking; the first one counts.
	Zone
	// ZoneOneWay does so for packets in this one's direction: the answers have no zone, and need no rule.
	ZoneOneWay
	// Jump asks a chain without a hook.
	Jump
	// Goto leaves the packet to a chain without a hook: no rule behind it follows.
	Goto
)
