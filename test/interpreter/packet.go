// Package interpreter is a second opinion about a Ruleset: it decides about packets from the meaning of conditions and actions alone, and
// shares no code with Rules, with the renderings, and with the backends. What it does not know is an error, never "no match".
package interpreter

import (
	"fmt"
	"net/netip"

	"istio-pod-network-controller/iptables"
)

// Interface is a network interface. The zero Interface is none.
type Interface struct {
	Name  string
	Index uint32
}

// Loopback returns the interface lo of every namespace.
func Loopback() Interface { return Interface{"lo", 1} }

// Owner is the owner of the socket that sends a packet.
type Owner struct{ UID, GID uint32 }

// Packet is a packet as a hook of the kernel sees it.
type Packet struct {
	Protocol uint32
	Src, Dst netip.AddrPort
	In, Out  Interface
	// Owner is nil for packets without a socket.
	Owner *Owner
	Mark  uint32
	// ConnMark, Status, Reply and ReplySrcPort are of the packet's connection. A packet whose State is Invalid or Untracked has none.
	ConnMark     uint32
	State        uint32
	Status       uint32
	Reply        bool
	ReplySrcPort uint16
	// Flags are the TCP flags FIN, SYN, RST and ACK.
	Flags uint32
	// SrcType and DstType are Local for addresses of the namespace.
	SrcType, DstType uint32
	// Taker is the socket of the namespace that takes the packet.
	Taker Taker
	// Diverts reports whether TPROXY finds a socket on the proxy's port.
	Diverts bool
}

// Taker is a kind of socket.
type Taker uint8

// The kinds of sockets. A transparent socket takes packets to addresses of others, too.
const (
	NoSocket Taker = iota
	PlainSocket
	TransparentSocket
)

// Verdict is what a Ruleset does to a packet.
type Verdict struct {
	Dropped bool
	// Redirect and TProxy are the local ports that the packet goes to; 0 is none.
	Redirect, TProxy uint16
	Mark, ConnMark   uint32
	// Zone is the zone of connection tracking that the rules choose; 0 is none.
	Zone uint32
	// Trace names the rules that have matched, as "chain: comment".
	Trace []string
}

// isTracked reports whether the packet belongs to a connection.
func (p Packet) isTracked() bool {
	return p.State&(iptables.New|iptables.Established|iptables.Related) != 0
}

// meetsNAT reports whether chains of type nat see the packet: only the first of a connection.
func (p Packet) meetsNAT() bool {
	return p.State&(iptables.New|iptables.Related) != 0 && p.Status&iptables.Confirmed == 0
}

// String returns all that conditions compare.
func (p Packet) String() string {
	owner := "nobody"
	if p.Owner != nil {
		owner = fmt.Sprintf("%d/%d", p.Owner.UID, p.Owner.GID)
	}
	return fmt.Sprintf("protocol %d, %s > %s, in %q, out %q, of %s, mark %d, connection mark %d, state %d, status %#x, reply %v, flags %#x, types %d %d, taker %d, diverts %v",
		p.Protocol, p.Src, p.Dst, p.In.Name, p.Out.Name, owner, p.Mark, p.ConnMark, p.State, p.Status, p.Reply, p.Flags, p.SrcType, p.DstType, p.Taker, p.Diverts)
}
