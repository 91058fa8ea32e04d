package nftables

import (
	"fmt"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/rawnetlink"
	"istio-pod-network-controller/iptables"
)

// expression is one expression of a rule, as the kernel returns it.
type expression struct {
	name string
	data []byte // its attributes
}

func (e expression) number(kind uint16) uint32 { return rawnetlink.BigEndian(find(e.data, kind)) }

// value returns the data inside an attribute (NFTA_DATA_VALUE).
func (e expression) value(kind uint16) []byte { return find(find(e.data, kind), unix.NFTA_DATA_VALUE) }

// decodeRule is the inverse of encode, for people to read. Whether a rule is ours is not decided here: rules are compared byte by byte. The
// comment of a rule with an expression that ours never use says so.
func decodeRule(rule []byte) iptables.Rule {
	d := decoder{host: rawnetlink.Host(), rule: iptables.Rule{Comment: comment(find(rule, unix.NFTA_RULE_USERDATA)), Uncounted: true}}
	for _, data := range rawnetlink.Each(find(rule, unix.NFTA_RULE_EXPRESSIONS)) {
		e := expression{name: rawnetlink.Name(find(data, unix.NFTA_EXPR_NAME)), data: find(data, unix.NFTA_EXPR_DATA)}
		if !d.take(e) {
			d.rule.Comment = fmt.Sprintf("not ours, expression %s: %s", printable(e.name), d.rule.Comment)
			break
		}
	}
	return d.rule
}

// comment returns the rule's comment as nft shows it: type, length, and text that ends with a zero (libnftnl's udata.h).
func comment(userdata []byte) string {
	const typeComment = 0
	for len(userdata) >= 2 {
		kind, size := userdata[0], int(userdata[1])
		if size > len(userdata)-2 {
			return ""
		}
		if kind == typeComment {
			return rawnetlink.Name(userdata[2 : 2+size])
		}
		userdata = userdata[2+size:]
	}
	return ""
}

// decoder reads a rule's expressions one by one. The register holds a field (with the bits that mask leaves, or in network byte order)
// or a number.
type decoder struct {
	host    rawnetlink.Order
	rule    iptables.Rule
	field   iptables.Field
	mask    []byte
	network bool
	number  []byte
}

// verdictDrop is NF_DROP of linux/netfilter.h.
const verdictDrop = 0

func (d *decoder) take(e expression) (known bool) {
	a := &d.rule.Action
	switch e.name {
	case "meta", "ct":
		return d.set(e) || d.load(e)
	case "payload", "fib", "socket":
		return d.load(e)
	case "bitwise":
		d.mask = e.value(unix.NFTA_BITWISE_MASK)
	case "byteorder":
		d.network = true
	case "cmp":
		if d.network {
			return d.limit(e)
		}
		c := iptables.Cond{Field: d.field, Not: (e.number(unix.NFTA_CMP_OP) == unix.NFT_CMP_NEQ) != d.field.IsBits()}
		if c.Field == iptables.Socket && e.number(unix.NFTA_CMP_OP) == unix.NFT_CMP_EQ {
			c.Field = iptables.Transparent
		}
		known = setValue(d.host, &c, e.value(unix.NFTA_CMP_DATA), d.mask)
		d.rule.Conds = append(d.rule.Conds, c)
		return known
	case "lookup":
		set := printable(baseName(rawnetlink.Name(find(e.data, unix.NFTA_LOOKUP_SET))))
		d.rule.Conds = append(d.rule.Conds, iptables.Cond{Field: d.field, Not: e.number(unix.NFTA_LOOKUP_FLAGS) != 0, Set: set})
	case "counter":
		packets, bytes := find(e.data, unix.NFTA_COUNTER_PACKETS), find(e.data, unix.NFTA_COUNTER_BYTES)
		d.rule.Counter, d.rule.Uncounted = iptables.Counter{Packets: wide(packets), Bytes: wide(bytes)}, false
	case "immediate":
		return d.immediate(e)
	case "redir":
		a.Verb, a.Port = iptables.Redirect, uint16(rawnetlink.BigEndian(d.number))
	case "tproxy":
		a.Verb, a.Port = iptables.TProxy, uint16(rawnetlink.BigEndian(d.number))
	default:
		return false
	}
	return true
}

func (d *decoder) load(e expression) (known bool) {
	d.field, known = fieldOf(e)
	d.mask, d.network = nil, false
	return known
}

// limit reads a limit of a range of users: the first one begins a condition, the second one completes it.
func (d *decoder) limit(e expression) (known bool) {
	user, last := rawnetlink.BigEndian(e.value(unix.NFTA_CMP_DATA)), len(d.rule.Conds)-1
	switch e.number(unix.NFTA_CMP_OP) {
	case unix.NFT_CMP_GTE:
		d.rule.Conds = append(d.rule.Conds, iptables.Cond{Field: d.field, Num: user})
	case unix.NFT_CMP_LTE:
		if last < 0 || d.rule.Conds[last].Field != d.field {
			return false
		}
		d.rule.Conds[last].Last = user
	default:
		return false
	}
	return true
}

// set reads an expression that sets a property of the packet or of its connection.
func (d *decoder) set(e expression) (known bool) {
	a, meta := &d.rule.Action, e.name == "meta"
	switch {
	case find(e.data, unix.NFTA_META_SREG) == nil && meta || find(e.data, unix.NFTA_CT_SREG) == nil && !meta:
		return false
	case meta && d.field == iptables.ConnMark:
		a.Verb = iptables.RestoreMark
	case meta && a.Verb == iptables.TProxy:
		a.Num = rawnetlink.Number32(d.host, d.number)
	case meta:
		a.Verb, a.Num = iptables.SetMark, rawnetlink.Number32(d.host, d.number)
	case d.field == iptables.Mark:
		a.Verb = iptables.SaveMark
	default:
		if a.Verb, a.Num = iptables.Zone, rawnetlink.Number32(d.host, d.number); find(e.data, unix.NFTA_CT_DIRECTION) != nil {
			a.Verb = iptables.ZoneOneWay
		}
	}
	return true
}

// immediate puts a number into the register, or returns a verdict.
func (d *decoder) immediate(e expression) (known bool) {
	if e.number(unix.NFTA_IMMEDIATE_DREG) != unix.NFT_REG_VERDICT {
		d.field, d.number = 0, e.value(unix.NFTA_IMMEDIATE_DATA)
		return true
	}
	verdict := find(find(e.data, unix.NFTA_IMMEDIATE_DATA), unix.NFTA_DATA_VERDICT)
	a := &d.rule.Action
	switch code := int32(rawnetlink.BigEndian(find(verdict, unix.NFTA_VERDICT_CODE))); {
	case code == verdictDrop:
		a.Verb = iptables.Drop
	case code == unix.NFT_JUMP:
		a.Verb, a.Chain = iptables.Jump, printable(rawnetlink.Name(find(verdict, unix.NFTA_VERDICT_CHAIN)))
	case code == unix.NFT_GOTO:
		a.Verb, a.Chain = iptables.Goto, printable(rawnetlink.Name(find(verdict, unix.NFTA_VERDICT_CHAIN)))
	case code != unix.NFT_RETURN:
		return false
	case a.Verb == 0:
		a.Verb = iptables.Return
	case a.Verb == iptables.SetMark:
		a.Verb = iptables.Divert
	}
	return true
}
