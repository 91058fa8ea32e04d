package nftables

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/iptables"
)

// decoder reads a rule's expressions one by one. The register holds a field (with the bits that mask leaves) or a number.
type decoder struct {
	rule   iptables.Rule
	field  iptables.Field
	mask   []byte
	number []byte
}

// The kernel's numbers (nf_tables.h) which golang.org/x/sys/unix does not name.
const (
	tproxyFamily  = 1
	tproxyRegPort = 3
	verdictDrop   = 0
)

func (d *decoder) take(e expression) error {
	switch e.name {
	case "meta":
		return d.meta(e)
	case "ct":
		return d.ct(e)
	case "payload", "fib", "socket":
		return d.load(e)
	case "bitwise":
		return d.bitwise(e)
	case "cmp":
		return d.compare(e)
	case "lookup":
		return d.lookup(e)
	case "counter":
		d.rule.Counter, d.rule.Uncounted = e.counter(), false
		return nil
	case "immediate":
		return d.immediate(e)
	case "redir":
		d.rule.Action = iptables.Action{Verb: iptables.Redirect, Port: d.port()}
		return known(e.number(unix.NFTA_REDIR_REG_PROTO_MIN) == reg)
	case "tproxy":
		d.rule.Action = iptables.Action{Verb: iptables.TProxy, Port: d.port()}
		return known(e.only(tproxyFamily, tproxyRegPort) && e.number(tproxyRegPort) == reg)
	}
	return errUnknown
}

func known(ok bool) error {
	if ok {
		return nil
	}
	return errUnknown
}

func (d *decoder) load(e expression) error {
	field, ok := fieldOf(e)
	d.field, d.mask = field, nil
	return known(ok)
}

// meta loads a field, or sets the packet's mark.
func (d *decoder) meta(e expression) error {
	if find(e.data, unix.NFTA_META_SREG) == nil {
		return d.load(e)
	}
	a := &d.rule.Action
	switch {
	case e.number(unix.NFTA_META_KEY) != unix.NFT_META_MARK || e.number(unix.NFTA_META_SREG) != reg:
		return errUnknown
	case d.field == iptables.ConnMark:
		a.Verb = iptables.RestoreMark
	case a.Verb == iptables.TProxy:
		a.Num = d.num()
	default:
		a.Verb, a.Num = iptables.SetMark, d.num()
	}
	return nil
}

// ct loads a property of the connection, or sets one.
func (d *decoder) ct(e expression) error {
	if find(e.data, unix.NFTA_CT_SREG) == nil {
		return d.load(e)
	}
	key := e.number(unix.NFTA_CT_KEY)
	switch {
	case e.number(unix.NFTA_CT_SREG) != reg:
		return errUnknown
	case key == unix.NFT_CT_MARK && d.field == iptables.Mark:
		d.rule.Action.Verb = iptables.SaveMark
	case key == unix.NFT_CT_ZONE:
		d.rule.Action = iptables.Action{Verb: iptables.Zone, Num: d.num()}
	default:
		return errUnknown
	}
	return nil
}

func (d *decoder) bitwise(e expression) error {
	d.mask = e.value(unix.NFTA_BITWISE_MASK)
	for _, x := range e.value(unix.NFTA_BITWISE_XOR) {
		if x != 0 {
			return errUnknown
		}
	}
	return known(e.number(unix.NFTA_BITWISE_SREG) == reg && e.number(unix.NFTA_BITWISE_DREG) == reg && e.number(bitwiseOp) == 0)
}

// bitwiseOp is NFTA_BITWISE_OP of nf_tables.h: 0 is mask and xor, others shift.
const bitwiseOp = 6

func (d *decoder) compare(e expression) error {
	op := e.number(unix.NFTA_CMP_OP)
	equal := op == unix.NFT_CMP_EQ || op == unix.NFT_CMP_NEQ
	if d.field == iptables.Socket {
		equal = op == unix.NFT_CMP_LTE
	}
	if e.number(unix.NFTA_CMP_SREG) != reg || !equal {
		return errUnknown
	}
	c := iptables.Cond{Field: d.field, Not: (op == unix.NFT_CMP_NEQ) != d.field.IsBits()}
	err := setValue(&c, e.value(unix.NFTA_CMP_DATA), d.mask)
	d.rule.Conds = append(d.rule.Conds, c)
	return err
}

func (d *decoder) lookup(e expression) error {
	d.rule.Conds = append(d.rule.Conds, iptables.Cond{
		Field: d.field, Not: e.number(unix.NFTA_LOOKUP_FLAGS) != 0, Set: printable(baseName(text(find(e.data, unix.NFTA_LOOKUP_SET)))),
	})
	return known(e.number(unix.NFTA_LOOKUP_SREG) == reg && e.only(unix.NFTA_LOOKUP_SET, unix.NFTA_LOOKUP_SREG, unix.NFTA_LOOKUP_FLAGS))
}

// immediate puts a number into the register, or returns a verdict, whose destination is the verdict register.
func (d *decoder) immediate(e expression) error {
	if to := e.number(unix.NFTA_IMMEDIATE_DREG); to != unix.NFT_REG_VERDICT {
		d.field, d.number = 0, e.value(unix.NFTA_IMMEDIATE_DATA)
		return known(to == reg)
	}
	verdict := find(find(e.data, unix.NFTA_IMMEDIATE_DATA), unix.NFTA_DATA_VERDICT)
	return d.verdict(int32(number(find(verdict, unix.NFTA_VERDICT_CODE)))) //nolint:gosec // the kernel's own negative number
}

func (d *decoder) verdict(code int32) error {
	a := &d.rule.Action
	switch {
	case code == verdictDrop:
		a.Verb = iptables.Drop
	case code != unix.NFT_RETURN:
		return errUnknown
	case a.Verb == 0:
		a.Verb = iptables.Return
	case a.Verb == iptables.SetMark:
		a.Verb = iptables.Divert
	}
	return nil
}

// port and num return the number in the register, which may be shorter than they are.
func (d *decoder) port() uint16 {
	var b [2]byte
	copy(b[:], d.number)
	return binary.BigEndian.Uint16(b[:])
}

func (d *decoder) num() uint32 {
	var b [4]byte
	copy(b[:], d.number)
	return binary.NativeEndian.Uint32(b[:])
}
