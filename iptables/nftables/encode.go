package nftables

import (
	"encoding/binary"
	"net/netip"

	nft "github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"istio-pod-network-controller/iptables"
)

// batch fills one table with chains whose rules use one generation of sets.
type batch struct {
	table  *nft.Table
	suffix string
}

// flush commits one transaction: it adds sets, and fills chains after emptying those in there.
func (b batch) flush(conn *nft.Conn, want []iptables.Chain, there map[string]string, sets []iptables.Set) error {
	for _, s := range sets {
		if err := addSet(conn, b.table, s, b.suffix); err != nil {
			return err
		}
	}
	for _, c := range want {
		chain := &nft.Chain{
			Table: b.table, Name: c.Name, Type: nft.ChainType(c.Type), Hooknum: hookNumber(c.Hook),
			Priority: new(nft.ChainPriority(c.Priority)),
		}
		if _, ok := there[c.Name]; ok {
			conn.FlushChain(chain)
		} else {
			conn.AddChain(chain)
		}
		for _, rule := range c.Rules {
			conn.AddRule(&nft.Rule{
				Table: b.table, Chain: chain, Exprs: encode(rule, b.suffix), UserData: ruleUserdata(rule),
			})
		}
	}
	return conn.Flush()
}

// ruleUserdata returns the rule's comment in the form that nft reads.
func ruleUserdata(r iptables.Rule) []byte {
	return userdata.AppendString(nil, userdata.TypeComment, r.Comment)
}

func hookNumber(h iptables.Hook) *nft.ChainHook {
	if h == iptables.Prerouting {
		return nft.ChainHookPrerouting
	}
	return nft.ChainHookOutput
}

func addSet(conn *nft.Conn, table *nft.Table, s iptables.Set, suffix string) error {
	set := &nft.Set{Table: table, Name: s.Name + suffix, KeyType: nft.TypeInetService}
	switch s.Kind {
	case iptables.IPv4Set:
		set.KeyType, set.Interval = nft.TypeIPAddr, true
	case iptables.IPv6Set:
		set.KeyType, set.Interval = nft.TypeIP6Addr, true
	case iptables.PortSet:
	}
	return conn.AddSet(set, elements(s))
}

func elements(s iptables.Set) []nft.SetElement {
	var out []nft.SetElement
	for _, p := range s.Ports {
		out = append(out, nft.SetElement{Key: binary.BigEndian.AppendUint16(nil, p)})
	}
	for _, p := range s.Prefixes {
		out = append(out, nft.SetElement{Key: p.Addr().AsSlice()})
		// An interval that reaches the end of the address space has no end element.
		if end := lastAddr(p).Next(); end.IsValid() {
			out = append(out, nft.SetElement{Key: end.AsSlice(), IntervalEnd: true})
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
	var out []expr.Any
	var family uint32
	for _, c := range r.Conds {
		if c.Field == iptables.Family {
			family = c.Num
		}
		out = append(out, load(c.Field, family))
		out = append(out, compare(c, suffix)...)
	}
	out = append(out, &expr.Counter{})
	return append(out, verdict(r.Action, family)...)
}

// compare returns the expressions that compare the register with a condition's value.
func compare(c iptables.Cond, suffix string) []expr.Any {
	if c.Set != "" {
		return []expr.Any{&expr.Lookup{SourceRegister: reg, SetName: c.Set + suffix, Invert: c.Not}}
	}
	op, data, bits := expr.CmpOpEq, value(c), mask(c)
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
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: uint32(len(bits)), Mask: bits, Xor: zero}, //nolint:gosec // 4 or 16
		&expr.Cmp{Op: op, Register: reg, Data: data},
	}
}

func verdict(a iptables.Action, family uint32) []expr.Any {
	number := func(data []byte) expr.Any { return &expr.Immediate{Register: reg, Data: data} }
	port := number(binaryutil.BigEndian.PutUint16(a.Port))
	setMark := []expr.Any{
		number(binaryutil.NativeEndian.PutUint32(a.Num)), &expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: reg},
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
		tproxy := &expr.TProxy{Family: byte(family), TableFamily: byte(nft.TableFamilyINet), RegPort: reg} //nolint:gosec // 2 or 10
		return append(append([]expr.Any{port, tproxy}, setMark...), leave)
	case iptables.SaveMark:
		return []expr.Any{load(iptables.Mark, 0), &expr.Ct{Key: expr.CtKeyMARK, SourceRegister: true, Register: reg}, leave}
	case iptables.RestoreMark:
		return []expr.Any{load(iptables.ConnMark, 0), &expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: reg}, leave}
	case iptables.Zone:
		zone := number(binaryutil.NativeEndian.PutUint32(a.Num)[:2])
		return []expr.Any{zone, &expr.Ct{Key: expr.CtKeyZONE, SourceRegister: true, Register: reg}, leave}
	case iptables.Return:
	}
	return []expr.Any{leave}
}
