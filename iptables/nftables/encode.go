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

// replace commits one transaction that deletes the old table, where there is one, and makes a new one that holds exactly
// r. A deletion costs milliseconds (closing the socket waits for the kernel to free what is gone), so a fresh namespace is
// spared it; somebody else's table of our name, made meanwhile, fails the transaction.
func replace(conn *nft.Conn, old *nft.Table, r iptables.Ruleset) error {
	table := &nft.Table{Family: nft.TableFamilyINet, Name: iptables.TableName}
	if old != nil {
		conn.DelTable(old)
	}
	conn.CreateTable(table)
	for _, s := range r.Sets {
		if err := addSet(conn, table, s); err != nil {
			return err
		}
	}
	for _, c := range r.Chains {
		chain := conn.AddChain(&nft.Chain{
			Table: table, Name: c.Name, Type: nft.ChainType(c.Type), Hooknum: hookNumber(c.Hook),
			Priority: new(nft.ChainPriority(c.Priority)),
		})
		for _, rule := range c.Rules {
			conn.AddRule(&nft.Rule{
				Table: table, Chain: chain, Exprs: encode(rule),
				UserData: userdata.AppendString(nil, userdata.TypeComment, rule.Comment),
			})
		}
	}
	return conn.Flush()
}

func hookNumber(h iptables.Hook) *nft.ChainHook {
	if h == iptables.Prerouting {
		return nft.ChainHookPrerouting
	}
	return nft.ChainHookOutput
}

func addSet(conn *nft.Conn, table *nft.Table, s iptables.Set) error {
	set := &nft.Set{Table: table, Name: s.Name, KeyType: nft.TypeInetService}
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

// lastAddr is the highest address of a prefix.
func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

func encode(r iptables.Rule) []expr.Any {
	var out []expr.Any
	var family uint32
	for _, c := range r.Conds {
		if c.Field == iptables.Family {
			family = c.Num
		}
		out = append(out, load(c.Field, family))
		out = append(out, compare(c)...)
	}
	out = append(out, &expr.Counter{})
	return append(out, verdict(r.Action, family)...)
}

// compare tests what the register holds.
func compare(c iptables.Cond) []expr.Any {
	if c.Set != "" {
		return []expr.Any{&expr.Lookup{SourceRegister: reg, SetName: c.Set, Invert: c.Not}}
	}
	op, data, bits := expr.CmpOpEq, value(c), mask(c)
	if c.Not {
		op = expr.CmpOpNeq
	}
	if bits == nil {
		return []expr.Any{&expr.Cmp{Op: op, Register: reg, Data: data}}
	}
	zero := make([]byte, len(bits))
	if c.Field == iptables.State {
		// One of the bits is enough.
		op, data = expr.CmpOpNeq, zero
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
