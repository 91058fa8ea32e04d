package foreign

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/rawnetlink"
)

// Numbers of nf_tables.h that golang.org/x/sys/unix does not name.
const (
	exprImmediateData = 2
	verdictRegister   = 0
	ctMark            = 3
	ctZone            = 17
	ctSource          = 4 // NFTA_CT_SREG
	payloadSource     = 5 // NFTA_PAYLOAD_SREG
	ipProtocolOffset  = 9
)

// decision is what one rule does that matters.
type decision struct {
	decides string // what it does before ours, or ""
	target  string // the chain that it jumps or goes to
	ends    bool   // it decides for every packet: the rules behind it are not reached
}

// reading is what is known while a rule's expressions are read in order.
type reading struct {
	ours        Ours
	nat         bool
	out         decision
	other       bool              // the rule is for a protocol that we do not redirect
	conditional bool              // the rule is not for all packets
	protocol    map[uint32]bool   // registers that hold the protocol
	values      map[uint32][]byte // registers that hold a constant
}

// rule returns what a rule decides, from its expressions.
func (o Ours) rule(expressions []byte, nat bool) decision {
	r := reading{ours: o, nat: nat, protocol: map[uint32]bool{}, values: map[uint32][]byte{}}
	for _, e := range rawnetlink.Each(expressions) {
		a := rawnetlink.Attributes(e)
		r.expression(rawnetlink.Name(a[unix.NFTA_EXPR_NAME]), rawnetlink.Attributes(a[unix.NFTA_EXPR_DATA]))
		if r.other {
			return decision{}
		}
	}
	r.out.ends = r.out.ends && !r.conditional
	return r.out
}

func (r *reading) expression(name string, data map[uint16][]byte) {
	switch name {
	case "counter", "log":
		return
	case "immediate":
		r.immediate(data)
		return
	case "meta":
		r.meta(data)
	case "payload":
		r.payload(data)
	case "cmp":
		r.compare(data)
	case "bitwise":
		r.bitwise(data)
		return
	case "ct":
		r.conntrack(data)
	case "lookup":
		if register, ok := data[unix.NFTA_LOOKUP_DREG]; ok && bigEndian(register) == verdictRegister {
			r.out.decides = "has a map of verdicts"
		}
	case "target":
		r.decide(xtTarget(r.ours, rawnetlink.Name(data[unix.NFTA_TARGET_NAME]), data[unix.NFTA_TARGET_INFO], r.nat))
	default:
		r.decide(statement(name, r.nat))
	}
	r.conditional = true
}

// decide keeps what a rule does, if it matters.
func (r *reading) decide(what string) {
	if what != "" {
		r.out.decides = what
	}
}

// statement returns what a statement of nf_tables does that decides.
func statement(name string, nat bool) string {
	if nat {
		return map[string]string{
			"redir": "redirects to another port", "nat": "rewrites the destination", "queue": "queues",
		}[name]
	}
	return map[string]string{
		"notrack": "takes packets from connection tracking", "tproxy": "gives packets to a socket", "reject": "rejects", "queue": "queues",
		"synproxy": "answers for the destination", "fwd": "forwards",
	}[name]
}

// immediate reads a constant, or a verdict.
func (r *reading) immediate(data map[uint16][]byte) {
	value := rawnetlink.Attributes(data[exprImmediateData])
	if register := bigEndian(data[unix.NFTA_IMMEDIATE_DREG]); register != verdictRegister {
		r.values[register] = value[unix.NFTA_DATA_VALUE]
		return
	}
	verdict := rawnetlink.Attributes(value[unix.NFTA_DATA_VERDICT])
	switch code := int32(bigEndian(verdict[unix.NFTA_VERDICT_CODE])); code { //nolint:gosec // the kernel's own negative number
	case unix.NFT_JUMP:
		r.out.target = rawnetlink.Name(verdict[unix.NFTA_VERDICT_CHAIN])
	case unix.NFT_GOTO:
		r.out.target, r.out.ends = rawnetlink.Name(verdict[unix.NFTA_VERDICT_CHAIN]), true
	case unix.NFT_RETURN, 1: // accept
		r.out.ends = true
	case 0:
		r.out.decides, r.out.ends = "drops", true
	}
}

func (r *reading) meta(data map[uint16][]byte) {
	key := bigEndian(data[unix.NFTA_META_KEY])
	source, sets := data[unix.NFTA_META_SREG]
	switch {
	case sets && key == unix.NFT_META_MARK && !r.nat:
		r.mark(r.values[bigEndian(source)])
	case !sets:
		r.load(bigEndian(data[unix.NFTA_META_DREG]), key == unix.NFT_META_L4PROTO)
	}
}

// mark reads that a mark is set, to a constant value or to one that is not known.
func (r *reading) mark(value []byte) {
	if len(value) != 4 || r.ours.hasMark(binary.NativeEndian.Uint32(value)) {
		r.decide("sets a mark that our rules match")
	}
}

// bitwise reads a calculation. It has a constant result if it keeps no bit.
func (r *reading) bitwise(data map[uint16][]byte) {
	register := bigEndian(data[unix.NFTA_BITWISE_DREG])
	delete(r.values, register)
	delete(r.protocol, register)
	mask := rawnetlink.Attributes(data[unix.NFTA_BITWISE_MASK])[unix.NFTA_DATA_VALUE]
	if len(mask) > 0 && len(bytes.Trim(mask, "\x00")) == 0 {
		r.values[register] = rawnetlink.Attributes(data[unix.NFTA_BITWISE_XOR])[unix.NFTA_DATA_VALUE]
	}
}

func (r *reading) payload(data map[uint16][]byte) {
	if _, sets := data[payloadSource]; sets {
		r.decide("rewrites packets")
		return
	}
	isProtocol := bigEndian(data[unix.NFTA_PAYLOAD_BASE]) == unix.NFT_PAYLOAD_NETWORK_HEADER &&
		bigEndian(data[unix.NFTA_PAYLOAD_OFFSET]) == ipProtocolOffset && bigEndian(data[unix.NFTA_PAYLOAD_LEN]) == 1
	r.load(bigEndian(data[unix.NFTA_PAYLOAD_DREG]), isProtocol)
}

// load notes what a register holds from now on.
func (r *reading) load(register uint32, isProtocol bool) {
	delete(r.values, register)
	r.protocol[register] = isProtocol
}

// compare reads a comparison: that of the protocol with one that we do not redirect ends the look at the rule.
func (r *reading) compare(data map[uint16][]byte) {
	value := rawnetlink.Attributes(data[unix.NFTA_CMP_DATA])[unix.NFTA_DATA_VALUE]
	if len(value) == 1 && r.protocol[bigEndian(data[unix.NFTA_CMP_SREG])] && bigEndian(data[unix.NFTA_CMP_OP]) == unix.NFT_CMP_EQ {
		r.other = !r.ours.hasProtocol(uint32(value[0]))
	}
}

func (r *reading) conntrack(data map[uint16][]byte) {
	if _, sets := data[ctSource]; !sets || r.nat {
		return
	}
	switch bigEndian(data[unix.NFTA_CT_KEY]) {
	case ctZone:
		r.decide("puts packets into another zone of connection tracking")
	case ctMark:
		if r.ours.marks {
			r.decide("sets a mark of connections")
		}
	}
}
