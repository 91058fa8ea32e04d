package nftables

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	nft "github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"

	"istio-pod-network-controller/iptables"
)

// decode is encode's inverse. A rule that nothing of ours can have written says so in its comment, and so is drift.
func decode(r dumpedRule) iptables.Rule {
	d := decoder{rule: iptables.Rule{Comment: r.comment}}
	if r.unknown != "" {
		d.rule.Comment = fmt.Sprintf("not ours: expression %s: %s", r.unknown, r.comment)
	}
	for _, e := range r.exprs {
		if err := d.take(e); err != nil {
			d.rule.Comment = fmt.Sprintf("not ours: %s: %s", err, r.comment)
			return d.rule
		}
	}
	return d.rule
}

// decoder reads expressions one by one. What the register holds is a field, with the bits that a mask has left, or a number.
type decoder struct {
	rule   iptables.Rule
	field  iptables.Field
	mask   []byte
	number []byte
}

func (d *decoder) take(e expr.Any) error {
	switch e := e.(type) {
	case *expr.Meta:
		if e.SourceRegister {
			return d.setMark(e.Key)
		}
		return d.load(e)
	case *expr.Ct:
		if e.SourceRegister {
			return d.setCt(e.Key)
		}
		return d.load(e)
	case *expr.Payload:
		return d.load(e)
	case *expr.Fib:
		return d.load(e)
	case *expr.Bitwise:
		d.mask = e.Mask
	case *expr.Cmp:
		c := iptables.Cond{Field: d.field, Not: e.Op == expr.CmpOpNeq && d.field != iptables.State}
		d.rule.Conds = append(d.rule.Conds, c)
		return setValue(&d.rule.Conds[len(d.rule.Conds)-1], e.Data, d.mask)
	case *expr.Lookup:
		d.rule.Conds = append(d.rule.Conds, iptables.Cond{Field: d.field, Not: e.Invert, Set: baseName(e.SetName)})
	case *expr.Counter:
		d.rule.Counter = iptables.Counter{Packets: e.Packets, Bytes: e.Bytes}
	case *expr.Immediate:
		d.field, d.number = 0, e.Data
	case *expr.Redir:
		d.rule.Action = iptables.Action{Verb: iptables.Redirect, Port: d.port()}
	case *expr.TProxy:
		d.rule.Action = iptables.Action{Verb: iptables.TProxy, Port: d.port()}
	case *expr.Verdict:
		return d.verdict(e.Kind)
	default:
		return fmt.Errorf("unknown expression %T", e)
	}
	return nil
}

func (d *decoder) load(e expr.Any) error {
	field, ok := fieldOf(e)
	if !ok {
		return fmt.Errorf("unknown field %+v", e)
	}
	d.field, d.mask = field, nil
	return nil
}

// setMark reads what puts the register into the packet's mark.
func (d *decoder) setMark(key expr.MetaKey) error {
	a := &d.rule.Action
	switch {
	case key != expr.MetaKeyMARK:
		return fmt.Errorf("unknown field %d is set", key)
	case d.field == iptables.ConnMark:
		a.Verb = iptables.RestoreMark
	case a.Verb == iptables.TProxy:
		a.Num = d.num()
	default:
		a.Verb, a.Num = iptables.SetMark, d.num()
	}
	return nil
}

// setCt reads what puts the register into a property of the connection.
func (d *decoder) setCt(key expr.CtKey) error {
	switch {
	case key == expr.CtKeyMARK && d.field == iptables.Mark:
		d.rule.Action.Verb = iptables.SaveMark
	case key == expr.CtKeyZONE:
		d.rule.Action = iptables.Action{Verb: iptables.Zone, Num: d.num()}
	default:
		return fmt.Errorf("unknown property %d of the connection is set", key)
	}
	return nil
}

func (d *decoder) verdict(kind expr.VerdictKind) error {
	a := &d.rule.Action
	switch {
	case kind == expr.VerdictDrop:
		a.Verb = iptables.Drop
	case kind != expr.VerdictReturn:
		return fmt.Errorf("unknown verdict %d", kind)
	case a.Verb == 0:
		a.Verb = iptables.Return
	case a.Verb == iptables.SetMark:
		a.Verb = iptables.Divert
	}
	return nil
}

// port and num read the number that the register holds, which the kernel pads.
func (d *decoder) port() uint16 { return binary.BigEndian.Uint16(append(slices.Clone(d.number), 0, 0)) }

func (d *decoder) num() uint32 {
	return binaryutil.NativeEndian.Uint32(append(slices.Clone(d.number), 0, 0, 0, 0)[:4])
}

func decodeSet(s *nft.Set, elements []nft.SetElement) iptables.Set {
	out := iptables.Set{Name: baseName(s.Name)}
	switch s.KeyType.GetNFTMagic() {
	case nft.TypeIPAddr.GetNFTMagic():
		out.Kind, out.Prefixes = iptables.IPv4Set, prefixes(elements)
	case nft.TypeIP6Addr.GetNFTMagic():
		out.Kind, out.Prefixes = iptables.IPv6Set, prefixes(elements)
	case nft.TypeInetService.GetNFTMagic():
		out.Kind = iptables.PortSet
		for _, e := range elements {
			out.Ports = append(out.Ports, binary.BigEndian.Uint16(e.Key))
		}
	}
	return out
}

// prefixes joins the first addresses of intervals with those behind their ends: since intervals do not overlap, the n-th
// of one belongs to the n-th of the other, and only the last may lack an end.
func prefixes(elements []nft.SetElement) []netip.Prefix {
	var starts, ends []netip.Addr
	for _, e := range elements {
		a, _ := netip.AddrFromSlice(e.Key)
		if e.IntervalEnd {
			ends = append(ends, a)
		} else {
			starts = append(starts, a)
		}
	}
	slices.SortFunc(starts, netip.Addr.Compare)
	slices.SortFunc(ends, netip.Addr.Compare)
	// nftables' own tool opens a set whose first interval starts above zero with an end at zero.
	if len(ends) > 0 && ends[0].IsUnspecified() {
		ends = ends[1:]
	}
	var out []netip.Prefix
	for i, start := range starts {
		var end netip.Addr
		if i < len(ends) {
			end = ends[i]
		}
		out = append(out, prefixOf(start, end))
	}
	return out
}

// prefixOf gives the prefix from start up to, not including, end; an invalid end is the end of the address space. An
// interval that is no prefix gives the widest that fits, which then differs from all that we write.
func prefixOf(start, end netip.Addr) netip.Prefix {
	for bits := range start.BitLen() {
		p := netip.PrefixFrom(start, bits)
		if p.Masked().Addr() == start && lastAddr(p).Next() == end {
			return p
		}
	}
	return netip.PrefixFrom(start, start.BitLen())
}
