package foreign

import (
	"math"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/iptables"
)

// reading is a rule, as far as it is read: what it does to packets of ours. Conditions count for the effects that follow them, as in the kernel.
//
//   - A condition that no packet of ours passes ends it: misses is set, and nothing that follows counts.
//   - A condition that is not understood counts as passed.
//   - An effect that is not understood counts as one.
type reading struct {
	packets
	action
	misses bool
	// toLoopback and notByLoopback report what both together only a forged packet is: its destination is 127.0.0.0/8 or ::1, and it did not come by lo.
	toLoopback, notByLoopback bool
	// conditional reports whether some packet may not pass the rule.
	conditional bool
	// ends reports whether the rule ends its chain for the packets that pass it.
	ends bool
	// jump is the chain that it leads to, by name or, in a legacy table, by its offset.
	jump struct {
		chain  string
		offset uint32
		is     bool
	}
}

// do adds an effect.
func (r *reading) do(e effect) {
	if !r.misses {
		r.effects |= e
	}
}

// puzzle adds what is not understood.
func (r *reading) puzzle(what string) {
	if !r.misses && r.unknown == "" {
		r.unknown = what
	}
}

// change is a write to a mark: the bits that it may change, and the bits that it sets. Bits that are copied from another mark are not known to be set.
type change struct{ bits, set uint32 }

// anyChange is a write of a mark that is not known.
func anyChange() change { return change{bits: math.MaxUint32} }

// mark adds a write to a packet's mark, connMark to a connection's.
func (r *reading) mark(c change) {
	if r.counts(c, r.marks) {
		r.do(setsMark)
	}
}

func (r *reading) connMark(c change) {
	if r.counts(c, r.connMarks) {
		r.do(setsConnMark)
	}
}

func (r *reading) counts(c change, ours uint32) bool {
	return r.all || c.bits&ours != 0 || r.wholeMarks && c.set != 0
}

// protocol adds a condition on the packet's protocol.
func (r *reading) protocol(protocol byte, not bool) {
	r.conditional = true
	if !r.all && !r.passesProtocol(protocol, not) {
		r.misses = true
	}
}

// device adds a condition on the device by which packets come (in) or go. A device that does not exist has no packets.
func (r *reading) device(fits func(index uint32, name string) bool, not, in bool) {
	r.conditional = true
	if r.all {
		return
	}
	around := r.around()
	switch {
	case !around.known:
	case not:
		r.notByLoopback = r.notByLoopback || in && fits(iptables.LoopbackIndex, around.devices[iptables.LoopbackIndex])
		r.forged()
	case !around.hasDevice(fits):
		r.misses = true
	}
}

// forged ends the rule if only forged packets pass it.
func (r *reading) forged() { r.misses = r.misses || r.toLoopback && r.notByLoopback && !r.out }

// address adds a condition on the source, or the destination. What the pod receives has its address as destination, what it sends as source.
//
// The source of what it receives proves nothing: over lo come the proxy's answers to redirected connections, from wherever they seem to lead.
func (r *reading) address(p pattern, source, not bool) {
	r.conditional = true
	if r.all || not || source != r.out {
		return
	}
	r.toLoopback = r.toLoopback || p.loopback()
	r.forged()
	if r.anywhere {
		return
	}
	if around := r.around(); around.known && !around.hasAddress(p) {
		r.misses = true
	}
}

// Verdicts (linux/netfilter.h and nf_tables.h). The upper bits of a queue's verdict are its number.
const (
	verdictDrop   = 0
	verdictAccept = 1
	verdictQueue  = 3
	verdictStop   = 5
	verdictMask   = 0xff
)

// verdict adds the rule's verdict.
func (r *reading) verdict(code int32, chain string) {
	switch {
	case code == unix.NFT_JUMP || code == unix.NFT_GOTO:
		r.jump.is, r.jump.chain = !r.misses, chain
		r.ends = code == unix.NFT_GOTO
	case code == unix.NFT_RETURN || code == verdictAccept || code == verdictStop:
		r.ends = true
	case code == unix.NFT_CONTINUE || code == unix.NFT_BREAK:
	case code == verdictDrop:
		r.do(drops)
		r.ends = true
	case code > 0 && code&verdictMask == verdictQueue:
		r.do(queues)
		r.ends = true
	default:
		r.puzzle("a verdict")
	}
}

// endsChain reports whether no packet of ours passes to the next rule of the chain.
func (r *reading) endsChain() bool { return r.ends && !r.conditional }
