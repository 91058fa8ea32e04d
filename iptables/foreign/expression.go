package foreign

import (
	"slices"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/rawnetlink"
)

// Attributes and values that x/sys/unix lacks (linux/netfilter/nf_tables.h).
const (
	bitwiseOp      = 6  // NFTA_BITWISE_OP
	tcpOptionMSS   = 2  // TCPOPT_MSS
	registers      = 16 // of 32 bits
	firstRegister  = 8  // NFT_REG32_00
	registerSize   = 4
	longestName    = 16 // IFNAMSIZ
	protocolOffset = 9  // in the header of IPv4
)

// loaded is what an expression has put into registers: a part of the packet, or a fact about it.
type loaded struct {
	from      string // the expression, or "" if it is not known
	key       uint32 // of meta and ct; the offset of payload
	mask, xor []byte // what bitwise has made of it: value & mask ^ xor. nil is the value itself
	first     int    // register
	after     int    // the register behind its last
}

// nftReading reads the expressions of a rule of nf_tables.
type nftReading struct {
	reading
	family byte // of the packet, as far as it is known
	held   []loaded
}

// readRule reads a rule of a table of a family.
func readRule(p packets, family byte, expressions []byte) reading {
	r := nftReading{reading: reading{packets: p}, family: family}
	for _, e := range rawnetlink.Each(expressions) {
		a := rawnetlink.Attributes(e)
		if !r.take(rawnetlink.Name(a[unix.NFTA_EXPR_NAME]), rawnetlink.Attributes(a[unix.NFTA_EXPR_DATA])) || r.misses {
			break
		}
	}
	return r.reading
}

// take reads one expression. more is false if it decides: what follows has no effect.
func (r *nftReading) take(name string, a map[uint16][]byte) (more bool) {
	if e := expressionEffects()[name]; e != 0 {
		r.do(e)
		return true
	}
	switch name {
	case "immediate":
		return r.immediate(a)
	case "meta":
		r.meta(a)
	case "ct":
		r.ct(a)
	case "payload":
		r.payload(a)
	case "exthdr":
		r.option(a)
	case "bitwise":
		r.bitwise(a)
	case "cmp":
		r.compare(a)
	case "lookup":
		r.lookup(a)
	case "nat":
		r.do(map[bool]effect{true: newDestination, false: newSource}[number(a[unix.NFTA_NAT_TYPE]) == 1]) // NFT_NAT_DNAT
	case "objref":
		r.object(a)
	case "match":
		r.match(rawnetlink.Name(a[unix.NFTA_MATCH_NAME]), number(a[unix.NFTA_MATCH_REV]), a[unix.NFTA_MATCH_INFO])
	case "target":
		r.target(rawnetlink.Name(a[unix.NFTA_TARGET_NAME]), number(a[unix.NFTA_TARGET_REV]), a[unix.NFTA_TARGET_INFO])
	default:
		plain, unconditional := plainExpression(name)
		if !plain {
			r.puzzle("expression " + name)
		}
		if !unconditional {
			r.conditional = true
			r.forget() // it may load registers
		}
	}
	return true
}

func number(b []byte) uint32 { return rawnetlink.BigEndian(b) }

// forget forgets what registers hold.
func (r *nftReading) forget() { r.held = r.held[:0] }

// registerAt returns which register of 32 bits an attribute names. The older numbers are of registers of 128 bits.
func registerAt(attribute []byte) (register int, ok bool) {
	switch n := int(number(attribute)); {
	case n >= unix.NFT_REG_1 && n <= unix.NFT_REG_4:
		return (n - 1) * unix.NFT_REG_SIZE / registerSize, true
	case n >= firstRegister && n < firstRegister+registers:
		return n - firstRegister, true
	}
	return 0, false
}

// load puts something into a register, of so many bytes.
func (r *nftReading) load(register []byte, l loaded, size int) {
	first, ok := registerAt(register)
	if !ok {
		r.forget()
		return
	}
	l.first, l.after = first, first+max(1, (min(size, registers*registerSize)+registerSize-1)/registerSize)
	r.held = slices.DeleteFunc(r.held, func(old loaded) bool { return old.after > l.first && old.first < l.after })
	r.held = append(r.held, l)
}

// holds returns what a register begins with.
func (r *nftReading) holds(register []byte) loaded {
	first, ok := registerAt(register)
	if i := slices.IndexFunc(r.held, func(l loaded) bool { return l.first == first }); ok && i >= 0 {
		return r.held[i]
	}
	return loaded{}
}

func (r *nftReading) immediate(a map[uint16][]byte) (more bool) {
	data := rawnetlink.Attributes(a[unix.NFTA_IMMEDIATE_DATA])
	if number(a[unix.NFTA_IMMEDIATE_DREG]) != unix.NFT_REG_VERDICT {
		value := data[unix.NFTA_DATA_VALUE]
		r.load(a[unix.NFTA_IMMEDIATE_DREG], loaded{}, len(value))
		return true
	}
	v := rawnetlink.Attributes(data[unix.NFTA_DATA_VERDICT])
	if len(v[unix.NFTA_VERDICT_CODE]) != 4 {
		r.puzzle("a verdict")
		return false
	}
	code := int32(number(v[unix.NFTA_VERDICT_CODE]))
	r.verdict(code, rawnetlink.Name(v[unix.NFTA_VERDICT_CHAIN]))
	return code == unix.NFT_CONTINUE
}

// meta sets or loads a fact about the packet.
func (r *nftReading) meta(a map[uint16][]byte) {
	key := number(a[unix.NFTA_META_KEY])
	register, sets := a[unix.NFTA_META_SREG]
	switch {
	case !sets:
		size := registerSize
		if key == unix.NFT_META_IIFNAME || key == unix.NFT_META_OIFNAME {
			size = longestName
		}
		r.conditional = true // without a device or a socket the rule ends
		r.load(a[unix.NFTA_META_DREG], loaded{from: "meta", key: key}, size)
	case key == unix.NFT_META_MARK:
		r.mark(written(r.holds(register), "meta", unix.NFT_META_MARK))
	case key == unix.NFT_META_PRIORITY || key == unix.NFT_META_NFTRACE:
	default:
		r.puzzle("what it sets by meta")
	}
}

// written returns what changes if a value is written over the mark that an expression loads by a key.
func written(l loaded, from string, key uint32) change {
	if l.from != from || l.key != key || len(l.mask) != 4 || len(l.xor) != 4 {
		return anyChange()
	}
	set := u32(l.xor, 0)
	return change{bits: ^u32(l.mask, 0) | set, set: set}
}

// ct sets or loads a fact about the connection.
func (r *nftReading) ct(a map[uint16][]byte) {
	key := number(a[unix.NFTA_CT_KEY])
	register, sets := a[unix.NFTA_CT_SREG]
	switch {
	case !sets:
		r.conditional = true // without a connection the rule ends
		size := registerSize
		if key != unix.NFT_CT_MARK {
			size = registers * registerSize // more than any has
		}
		r.load(a[unix.NFTA_CT_DREG], loaded{from: "ct", key: key}, size)
	case key == unix.NFT_CT_MARK:
		r.connMark(written(r.holds(register), "ct", unix.NFT_CT_MARK))
	case key == unix.NFT_CT_ZONE:
		r.do(setsZone)
	case key == unix.NFT_CT_LABELS || key == unix.NFT_CT_EVENTMASK: // which no rule of ours reads
	default:
		r.puzzle("what it sets by ct")
	}
}

func (r *nftReading) payload(a map[uint16][]byte) {
	if _, sets := a[unix.NFTA_PAYLOAD_SREG]; sets {
		if rewrites(a) {
			r.do(writes)
		}
		return
	}
	r.conditional = true // a packet may be too short
	l := loaded{key: number(a[unix.NFTA_PAYLOAD_OFFSET])}
	if number(a[unix.NFTA_PAYLOAD_BASE]) == unix.NFT_PAYLOAD_NETWORK_HEADER {
		l.from = "payload"
	}
	r.load(a[unix.NFTA_PAYLOAD_DREG], l, int(min(number(a[unix.NFTA_PAYLOAD_LEN]), registers*registerSize)))
}

// option writes or loads an option of TCP or IPv6. Only the MSS may be written.
func (r *nftReading) option(a map[uint16][]byte) {
	_, sets := a[unix.NFTA_EXTHDR_SREG]
	_, loads := a[unix.NFTA_EXTHDR_DREG]
	kind := a[unix.NFTA_EXTHDR_TYPE]
	r.conditional = true
	switch {
	case loads:
		r.load(a[unix.NFTA_EXTHDR_DREG], loaded{}, registers*registerSize)
	case sets && len(kind) == 1 && kind[0] == tcpOptionMSS && number(a[unix.NFTA_EXTHDR_OP]) == unix.NFT_EXTHDR_OP_TCPOPT:
	default:
		r.do(writesOptions)
	}
}

// bitwise changes what a register holds.
func (r *nftReading) bitwise(a map[uint16][]byte) {
	l := r.holds(a[unix.NFTA_BITWISE_SREG])
	mask := rawnetlink.Attributes(a[unix.NFTA_BITWISE_MASK])[unix.NFTA_DATA_VALUE]
	xor := rawnetlink.Attributes(a[unix.NFTA_BITWISE_XOR])[unix.NFTA_DATA_VALUE]
	size := int(min(number(a[unix.NFTA_BITWISE_LEN]), registers*registerSize))
	if number(a[bitwiseOp]) != unix.NFT_BITWISE_BOOL || l.mask != nil || len(mask) == 0 || len(mask) != len(xor) {
		l = loaded{}
	} else {
		l.mask, l.xor = mask, xor
	}
	r.load(a[unix.NFTA_BITWISE_DREG], l, size)
}

// lookup looks something up in a set. A map of verdicts decides.
func (r *nftReading) lookup(a map[uint16][]byte) {
	r.conditional = true
	register, loads := a[unix.NFTA_LOOKUP_DREG]
	switch {
	case loads && number(register) == unix.NFT_REG_VERDICT:
		r.do(decidesByMap)
	case loads:
		r.load(register, loaded{}, registers*registerSize)
	}
}

// object is a named counter, quota, helper or the like.
func (r *nftReading) object(a map[uint16][]byte) {
	switch number(a[unix.NFTA_OBJREF_IMM_TYPE]) {
	case unix.NFT_OBJECT_COUNTER:
	case unix.NFT_OBJECT_QUOTA, unix.NFT_OBJECT_LIMIT, unix.NFT_OBJECT_CONNLIMIT:
		r.conditional = true
	case unix.NFT_OBJECT_CT_HELPER:
		r.do(setsHelper)
	case unix.NFT_OBJECT_CT_TIMEOUT:
		r.do(setsTimeout)
	default:
		r.puzzle("a named object")
	}
}
