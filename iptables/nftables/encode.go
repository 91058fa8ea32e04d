package nftables

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/rawnetlink"
	"istio-pod-network-controller/iptables"
)

// message returns a message of a transaction. Its first attribute names our table, which is attribute 1 of every kind of object.
func message(kind, flags uint16, attributes ...[]byte) rawnetlink.Request {
	table := rawnetlink.Text(unix.NFTA_TABLE_NAME, iptables.TableName)
	r := get(kind, slices.Insert(attributes, 0, table)...)
	r.Flags, r.Silent = flags, true
	return r
}

// big returns an attribute with a number in network byte order.
func big(kind uint16, n uint32) []byte {
	return rawnetlink.Bytes(kind, binary.BigEndian.AppendUint32(nil, n))
}

// nested returns an attribute that holds others.
func nested(kind uint16, attributes ...[]byte) []byte {
	return rawnetlink.Bytes(kind|unix.NLA_F_NESTED, slices.Concat(attributes...))
}

// newTable makes our table. It fails if there is one.
func newTable() rawnetlink.Request {
	return message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_EXCL, big(unix.NFTA_TABLE_FLAGS, 0))
}

func deleteTable() rawnetlink.Request { return message(unix.NFT_MSG_DELTABLE, 0) }

func flushChain(name string) rawnetlink.Request {
	return message(unix.NFT_MSG_DELRULE, 0, rawnetlink.Text(unix.NFTA_RULE_CHAIN, name))
}

// fill adds sets, and fills chains after emptying those in there. The rules use the generation of sets that suffix names.
func fill(suffix string, want []iptables.Chain, there map[string]string, sets []iptables.Set) (t transaction, err error) {
	for i, s := range sets {
		t = append(t, addSet(s, suffix, uint32(i+1))...)
	}
	for _, c := range want { // all of them first: a rule may jump to any
		if _, ok := there[c.Name]; ok {
			t = append(t, flushChain(c.Name))
		} else {
			t = append(t, newChain(c))
		}
	}
	for _, c := range want {
		for _, r := range c.Rules {
			var list [][]byte
			for _, e := range encode(r, suffix) {
				data, err := marshal(e)
				if err != nil {
					return nil, fmt.Errorf("encode rule %q: %w", r.Comment, err)
				}
				list = append(list, nested(unix.NFTA_LIST_ELEM, data))
			}
			t = append(t, message(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, rawnetlink.Text(unix.NFTA_RULE_CHAIN, c.Name),
				nested(unix.NFTA_RULE_EXPRESSIONS, list...), rawnetlink.Bytes(unix.NFTA_RULE_USERDATA, ruleUserdata(r))))
		}
	}
	return t, nil
}

// marshal returns an expression's attributes. The library leaves out the direction of a zone.
func marshal(e expr.Any) ([]byte, error) {
	data, err := expr.Marshal(unix.NFPROTO_INET, e)
	if ct, ok := e.(*expr.Ct); !ok || ct.Key != expr.CtKeyZONE || !ct.OptDirection || err != nil {
		return data, err
	}
	direction := rawnetlink.Bytes(unix.NFTA_CT_DIRECTION, []byte{expr.CtDirOriginal})
	return slices.Concat(rawnetlink.Text(unix.NFTA_EXPR_NAME, "ct"), nested(unix.NFTA_EXPR_DATA, find(data, unix.NFTA_EXPR_DATA), direction)), nil
}

// ruleUserdata returns the rule's comment in the form that nft reads.
func ruleUserdata(r iptables.Rule) []byte {
	return userdata.AppendString(nil, userdata.TypeComment, r.Comment)
}

func newChain(c iptables.Chain) rawnetlink.Request {
	name := rawnetlink.Text(unix.NFTA_CHAIN_NAME, c.Name)
	if c.Hook == "" {
		return message(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, name)
	}
	hook := nested(unix.NFTA_CHAIN_HOOK, big(unix.NFTA_HOOK_HOOKNUM, hookNumber(c.Hook)), big(unix.NFTA_HOOK_PRIORITY, uint32(c.Priority)))
	return message(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE,
		name, hook, rawnetlink.Text(unix.NFTA_CHAIN_TYPE, string(c.Type)))
}

func hookNumber(h iptables.Hook) uint32 {
	switch h {
	case iptables.Prerouting:
		return unix.NF_INET_PRE_ROUTING
	case iptables.Input:
		return unix.NF_INET_LOCAL_IN
	default:
		return unix.NF_INET_LOCAL_OUT
	}
}

// The types of set keys that the nft program knows (datatype.h), and the size of their values in bytes.
const (
	typeIPv4, sizeIPv4 = 7, 4
	typeIPv6, sizeIPv6 = 8, 16
	typePort, sizePort = 13, 2
)

// manyElements is how many elements of a set are in one message, whose attributes have at most 64 KiB.
const manyElements = 1000

// addSet makes a set with its elements. id is its number in the transaction.
func addSet(s iptables.Set, suffix string, id uint32) (t transaction) {
	kind, size, flags := uint32(typePort), uint32(sizePort), uint32(0)
	switch s.Kind {
	case iptables.IPv4Set:
		kind, size, flags = typeIPv4, sizeIPv4, unix.NFT_SET_INTERVAL
	case iptables.IPv6Set:
		kind, size, flags = typeIPv6, sizeIPv6, unix.NFT_SET_INTERVAL
	case iptables.RangeSet:
		flags = unix.NFT_SET_INTERVAL
	case iptables.PortSet:
	}
	set := message(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, rawnetlink.Text(unix.NFTA_SET_NAME, s.Name+suffix), big(unix.NFTA_SET_FLAGS, flags),
		big(unix.NFTA_SET_KEY_TYPE, kind), big(unix.NFTA_SET_KEY_LEN, size), big(unix.NFTA_SET_ID, id))
	if flags != 0 { // without effect; nft does so
		order := userdata.AppendUint32(nil, userdata.NFTNL_UDATA_SET_KEYBYTEORDER, 2)
		set.Attributes = append(set.Attributes, rawnetlink.Bytes(unix.NFTA_SET_USERDATA, order))
	}
	t = append(t, set)
	return append(t, elementMessages(unix.NFT_MSG_NEWSETELEM, s, suffix, big(unix.NFTA_SET_ELEM_LIST_SET_ID, id))...)
}

// elementMessages adds a set's elements, or deletes them, as kind says.
func elementMessages(kind uint16, s iptables.Set, suffix string, more ...[]byte) (t transaction) {
	flags := uint16(0)
	if kind == unix.NFT_MSG_NEWSETELEM {
		flags = unix.NLM_F_CREATE
	}
	for some := range slices.Chunk(elements(s), manyElements) {
		attributes := append([][]byte{rawnetlink.Text(unix.NFTA_SET_ELEM_LIST_SET, s.Name+suffix)}, more...)
		t = append(t, message(kind, flags, append(attributes, nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, some...))...))
	}
	return t
}

const maxPort = 1<<16 - 1

// elements returns a set's elements as attributes.
func elements(s iptables.Set) (out [][]byte) {
	element := func(key []byte, more ...[]byte) {
		value := nested(unix.NFTA_SET_ELEM_KEY, rawnetlink.Bytes(unix.NFTA_DATA_VALUE, key))
		out = append(out, nested(unix.NFTA_LIST_ELEM, slices.Insert(more, 0, value)...))
	}
	end := big(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
	for _, r := range s.Ranges {
		element(binary.BigEndian.AppendUint16(nil, r.First))
		if s.Kind == iptables.RangeSet && r.Last < maxPort { // an interval that reaches the end has no end element
			element(binary.BigEndian.AppendUint16(nil, r.Last+1), end)
		}
	}
	for _, p := range s.Prefixes {
		element(p.Addr().AsSlice())
		if behind := lastAddr(p).Next(); behind.IsValid() {
			element(behind.AsSlice(), end)
		}
	}
	return out
}

// lastAddr returns the highest address of a prefix.
func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

func encode(r iptables.Rule, suffix string) []expr.Any {
	host := rawnetlink.Host()
	var out []expr.Any
	var family uint32
	for _, c := range r.Conds {
		if c.Field == iptables.Family {
			family = c.Num
		}
		out = append(out, load(c.Field, family))
		out = append(out, compare(host, c, suffix)...)
	}
	out = append(out, &expr.Counter{})
	return append(out, verdict(host, r.Action, family)...)
}

// compare returns the expressions that compare the register with a condition's value.
func compare(host rawnetlink.Order, c iptables.Cond, suffix string) []expr.Any {
	if c.Set != "" {
		return []expr.Any{&expr.Lookup{SourceRegister: reg, SetName: c.Set + suffix, Invert: c.Not}}
	}
	if c.Last != 0 {
		// Numbers are compared as bytes, from the first to the last. The kernel keeps users in its own byte order.
		return []expr.Any{
			&expr.Byteorder{SourceRegister: reg, DestRegister: reg, Op: expr.ByteorderHton, Len: 4, Size: 4},
			&expr.Cmp{Op: expr.CmpOpGte, Register: reg, Data: binary.BigEndian.AppendUint32(nil, c.Num)},
			&expr.Cmp{Op: expr.CmpOpLte, Register: reg, Data: binary.BigEndian.AppendUint32(nil, c.Last)},
		}
	}
	op, data, bits := expr.CmpOpEq, value(host, c), mask(host, c)
	switch {
	case c.Field == iptables.Socket:
		op = expr.CmpOpLte
	case c.Not:
		op = expr.CmpOpNeq
	}
	if bits == nil {
		return []expr.Any{&expr.Cmp{Op: op, Register: reg, Data: data}}
	}
	zero := make([]byte, len(bits))
	if c.Field.IsBits() {
		// One of the bits in common is enough.
		op, data = expr.CmpOpNeq, zero
		if c.Not {
			op = expr.CmpOpEq
		}
	}
	return []expr.Any{
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: uint32(len(bits)), Mask: bits, Xor: zero},
		&expr.Cmp{Op: op, Register: reg, Data: data},
	}
}

func verdict(host rawnetlink.Order, a iptables.Action, family uint32) []expr.Any {
	number := func(data []byte) expr.Any { return &expr.Immediate{Register: reg, Data: data} }
	port := number(binary.BigEndian.AppendUint16(nil, a.Port))
	setMark := []expr.Any{
		number(host.AppendUint32(nil, a.Num)), &expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: reg},
	}
	leave := &expr.Verdict{Kind: expr.VerdictReturn}
	switch a.Verb {
	case iptables.Redirect:
		return []expr.Any{port, &expr.Redir{RegisterProtoMin: reg, Flags: unix.NF_NAT_RANGE_PROTO_SPECIFIED}}
	case iptables.Drop:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}
	case iptables.SetMark:
		return setMark
	case iptables.Divert:
		return append(setMark, leave)
	case iptables.TProxy:
		tproxy := &expr.TProxy{Family: byte(family), TableFamily: unix.NFPROTO_INET, RegPort: reg}
		return append(append([]expr.Any{port, tproxy}, setMark...), leave)
	case iptables.SaveMark:
		return []expr.Any{load(iptables.Mark, 0), &expr.Ct{Key: expr.CtKeyMARK, SourceRegister: true, Register: reg}, leave}
	case iptables.RestoreMark:
		return []expr.Any{load(iptables.ConnMark, 0), &expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: reg}, leave}
	case iptables.Zone, iptables.ZoneOneWay:
		zone := number(host.AppendUint16(nil, uint16(a.Num)))
		oneWay := a.Verb == iptables.ZoneOneWay
		return []expr.Any{zone, &expr.Ct{Key: expr.CtKeyZONE, SourceRegister: true, Register: reg, OptDirection: oneWay}, leave}
	case iptables.Jump:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: a.Chain}}
	case iptables.Goto:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: a.Chain}}
	case iptables.Return:
	}
	return []expr.Any{leave}
}
