package foreign

import (
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
	bitwiseOperation  = 6 // NFTA_BITWISE_OP
	allBits           = 1<<32 - 1
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
	family      byte
	out         decision
	other       bool // what follows is for a protocol that we do not redirect
	over        bool // the kernel does not come to what follows, because of a verdict
	conditional bool // the rule is not for all packets
	ipv4        bool // what follows is for IPv4 only
	loaded      loaded
}

// loaded is what the expression just before has put into a register. What older ones have put there is not relied on: registers
// overlap, and most expressions write one.
type loaded struct {
	register uint32
	kind     loadedKind
	// value and fixed are of a number: the bits of it that are known, and which these are.
	value, fixed uint32
}

type loadedKind int

const (
	loadedOther loadedKind = iota
	loadedNumber
	loadedProtocol
	loadedFamily
)

// rule returns what a rule of a family decides, from its expressions.
func (o Ours) rule(family byte, expressions []byte, nat bool) decision {
	r := reading{ours: o, family: family}
	for _, e := range rawnetlink.Each(expressions) {
		a := rawnetlink.Attributes(e)
		r.expression(rawnetlink.Name(a[unix.NFTA_EXPR_NAME]), rawnetlink.Attributes(a[unix.NFTA_EXPR_DATA]), nat)
		if r.other { // what came before the comparison is done all the same
			return decision{decides: r.out.decides}
		}
		if r.over {
			break
		}
	}
	r.out.ends = r.out.ends && !r.conditional
	return r.out
}

func (r *reading) expression(name string, data map[uint16][]byte, nat bool) {
	before := r.loaded
	r.loaded = loaded{}
	switch name {
	case "counter", "log":
		return
	case "immediate":
		r.immediate(data)
		return
	case "bitwise":
		r.bitwise(data)
		return
	case "meta":
		r.meta(data, before)
	case "payload":
		r.payload(data)
	case "cmp":
		r.compare(data, before)
	case "ct":
		r.conntrack(data, nat)
	case "lookup":
		if register, ok := data[unix.NFTA_LOOKUP_DREG]; ok && bigEndian(register) == verdictRegister {
			r.out.decides = "has a map of verdicts"
		}
	case "target":
		r.decide(xtTarget(r.ours, rawnetlink.Name(data[unix.NFTA_TARGET_NAME]), data[unix.NFTA_TARGET_INFO]))
	default:
		r.decide(statement(name, nat))
	}
	r.conditional = true
}

// decide keeps what a rule does, if it matters.
func (r *reading) decide(what string) {
	if what != "" {
		r.out.decides = what
	}
}

// statement returns what a statement of nf_tables does that decides. The kernel accepts some of them in some types of chains only.
func statement(name string, nat bool) string {
	if nat && name == "notrack" {
		return "" // a packet that comes to a nat chain is tracked already
	}
	return map[string]string{
		"redir": "redirects to another port", "nat": "rewrites the destination", "queue": "queues",
		"notrack": "takes packets from connection tracking", "tproxy": "gives packets to a socket", "reject": "rejects",
		"synproxy": "answers for the destination", "fwd": "forwards", "dup": "copies packets to another host",
	}[name]
}

// immediate reads a constant, or a verdict.
func (r *reading) immediate(data map[uint16][]byte) {
	value := rawnetlink.Attributes(data[exprImmediateData])
	if register := bigEndian(data[unix.NFTA_IMMEDIATE_DREG]); register != verdictRegister {
		if number := value[unix.NFTA_DATA_VALUE]; len(number) == 4 {
			r.loaded = loaded{register: register, kind: loadedNumber, value: binary.NativeEndian.Uint32(number), fixed: allBits}
		}
		return
	}
	verdict := rawnetlink.Attributes(value[unix.NFTA_DATA_VERDICT])
	r.over = true
	switch code := int32(bigEndian(verdict[unix.NFTA_VERDICT_CODE])); code { //nolint:gosec // the kernel's own negative number
	case unix.NFT_CONTINUE:
		r.over = false
	case unix.NFT_BREAK:
	case unix.NFT_JUMP:
		r.out.target = rawnetlink.Name(verdict[unix.NFTA_VERDICT_CHAIN])
	case unix.NFT_GOTO:
		r.out.target, r.out.ends = rawnetlink.Name(verdict[unix.NFTA_VERDICT_CHAIN]), true
	case unix.NFT_RETURN:
		r.out.ends = true
	default:
		r.out.decides, r.out.ends = netfilterVerdict(code), true
	}
}

// netfilterVerdict returns what a verdict of netfilter (NF_ACCEPT and so on) decides. Its upper bits are a parameter.
func netfilterVerdict(code int32) string {
	const accept, queue, mask = 1, 3, 0xff
	switch code & mask {
	case accept:
		return ""
	case queue:
		return "queues"
	}
	return "drops"
}

func (r *reading) meta(data map[uint16][]byte, before loaded) {
	key := bigEndian(data[unix.NFTA_META_KEY])
	if source, sets := data[unix.NFTA_META_SREG]; sets {
		if key == unix.NFT_META_MARK && before.mayBeMark(r.ours, bigEndian(source)) {
			r.decide("sets a mark that our rules match")
		}
		return
	}
	kind := map[uint32]loadedKind{unix.NFT_META_L4PROTO: loadedProtocol, unix.NFT_META_NFPROTO: loadedFamily}[key]
	r.loaded = loaded{register: bigEndian(data[unix.NFTA_META_DREG]), kind: kind}
}

// mayBeMark reports whether a register may hold a mark that our rules match.
func (l loaded) mayBeMark(o Ours, register uint32) bool {
	return l.register != register || l.kind != loadedNumber || o.hasMark(l.value, l.fixed)
}

// bitwise reads a calculation: the bits that it does not keep have a constant result.
func (r *reading) bitwise(data map[uint16][]byte) {
	mask := rawnetlink.Attributes(data[unix.NFTA_BITWISE_MASK])[unix.NFTA_DATA_VALUE]
	xor := rawnetlink.Attributes(data[unix.NFTA_BITWISE_XOR])[unix.NFTA_DATA_VALUE]
	if len(mask) == 4 && len(xor) == 4 && bigEndian(data[bitwiseOperation]) == 0 {
		r.loaded = loaded{
			register: bigEndian(data[unix.NFTA_BITWISE_DREG]), kind: loadedNumber,
			value: binary.NativeEndian.Uint32(xor), fixed: ^binary.NativeEndian.Uint32(mask),
		}
	}
}

// payload reads that a packet is written, or read. Only in an IPv4 header the protocol is in that place.
func (r *reading) payload(data map[uint16][]byte) {
	if _, sets := data[payloadSource]; sets {
		r.decide("rewrites packets")
		return
	}
	if (r.ipv4 || r.family == unix.NFPROTO_IPV4) && bigEndian(data[unix.NFTA_PAYLOAD_BASE]) == unix.NFT_PAYLOAD_NETWORK_HEADER &&
		bigEndian(data[unix.NFTA_PAYLOAD_OFFSET]) == ipProtocolOffset && bigEndian(data[unix.NFTA_PAYLOAD_LEN]) == 1 {
		r.loaded = loaded{register: bigEndian(data[unix.NFTA_PAYLOAD_DREG]), kind: loadedProtocol}
	}
}

// compare reads a comparison: that of the protocol with one that we do not redirect ends the look at the rule.
func (r *reading) compare(data map[uint16][]byte, before loaded) {
	value := rawnetlink.Attributes(data[unix.NFTA_CMP_DATA])[unix.NFTA_DATA_VALUE]
	if len(value) != 1 || before.register != bigEndian(data[unix.NFTA_CMP_SREG]) || bigEndian(data[unix.NFTA_CMP_OP]) != unix.NFT_CMP_EQ {
		return
	}
	switch before.kind {
	case loadedProtocol:
		r.other = !r.ours.hasProtocol(uint32(value[0]))
	case loadedFamily:
		r.ipv4 = value[0] == unix.NFPROTO_IPV4
	case loadedOther, loadedNumber:
	}
}

func (r *reading) conntrack(data map[uint16][]byte, nat bool) {
	if _, sets := data[ctSource]; !sets || nat {
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
