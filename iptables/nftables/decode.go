package nftables

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	nft "github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"

	"istio-pod-network-controller/iptables"
)

// decode is encode's inverse. A rule that nothing of ours can have written says so in its comment, and so is drift.
func decode(r *nft.Rule) iptables.Rule {
	var d decoder
	d.rule.Comment, _ = userdata.GetString(r.UserData, userdata.TypeComment)
	for _, e := range r.Exprs {
		if err := d.take(e); err != nil {
			d.rule.Comment = fmt.Sprintf("not ours: %s: %s", err, d.rule.Comment)
			return d.rule
		}
	}
	return d.rule
}

// decoder reads expressions one by one: field is what the register holds, port what was put there for a redirect.
type decoder struct {
	rule  iptables.Rule
	field iptables.Field
	port  uint16
}

func (d *decoder) take(e expr.Any) error {
	switch e := e.(type) {
	case *expr.Meta, *expr.Payload:
		field, ok := fieldOf(e)
		if !ok {
			return fmt.Errorf("unknown field %+v", e)
		}
		d.field = field
	case *expr.Cmp:
		c := iptables.Cond{Field: d.field, Not: e.Op == expr.CmpOpNeq}
		if err := setValue(&c, e.Data); err != nil {
			return err
		}
		d.rule.Conds = append(d.rule.Conds, c)
	case *expr.Lookup:
		d.rule.Conds = append(d.rule.Conds, iptables.Cond{Field: d.field, Not: e.Invert, Set: e.SetName})
	case *expr.Counter:
		d.rule.Counter = iptables.Counter{Packets: e.Packets, Bytes: e.Bytes}
	case *expr.Immediate:
		if len(e.Data) < 2 {
			return fmt.Errorf("immediate of %d bytes", len(e.Data))
		}
		d.port = binary.BigEndian.Uint16(e.Data)
	case *expr.Redir:
		d.rule.Action = iptables.Action{Verb: iptables.Redirect, Port: d.port}
	case *expr.Verdict:
		if e.Kind != expr.VerdictReturn {
			return fmt.Errorf("unknown verdict %d", e.Kind)
		}
		d.rule.Action = iptables.Action{Verb: iptables.Return}
	default:
		return fmt.Errorf("unknown expression %T", e)
	}
	return nil
}

func decodeSet(s *nft.Set, elements []nft.SetElement) iptables.Set {
	out := iptables.Set{Name: s.Name}
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
