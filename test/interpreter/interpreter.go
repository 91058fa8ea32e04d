package interpreter

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"istio-pod-network-controller/iptables"
)

// Decide returns what the chains at a hook do to a packet.
func Decide(r iptables.Ruleset, hook iptables.Hook, p Packet) (Verdict, error) {
	w := walk{Ruleset: r, packet: p, verdict: Verdict{Mark: p.Mark, ConnMark: p.ConnMark}}
	chains := slices.DeleteFunc(slices.Clone(r.Chains), func(c iptables.Chain) bool { return c.Hook != hook })
	slices.SortStableFunc(chains, func(a, b iptables.Chain) int { return cmp.Compare(a.Priority, b.Priority) })
	for _, c := range chains {
		switch c.Type {
		case iptables.NAT:
			if !p.meetsNAT() || w.verdict.Redirect != 0 {
				continue
			}
		case iptables.Filter, iptables.Route:
		default:
			return Verdict{}, fmt.Errorf("chain %s: unknown type %q", c.Name, c.Type)
		}
		if err := w.chain(c); err != nil {
			return Verdict{}, fmt.Errorf("chain %s: %w", c.Name, err)
		}
		if w.verdict.Dropped {
			break
		}
	}
	return w.verdict, nil
}

// Send returns what happens to a packet that the namespace sends: at output, and at prerouting if it comes back over lo.
func Send(r iptables.Ruleset, p Packet) (out, in Verdict, err error) {
	if out, err = Decide(r, iptables.Output, p); err != nil || out.Dropped {
		return out, in, err
	}
	if out.Redirect == 0 && p.Out != Loopback() {
		return out, in, nil
	}
	p.In, p.Out, p.Owner, p.Mark, p.ConnMark = Loopback(), Interface{}, nil, out.Mark, out.ConnMark
	if p.isTracked() {
		p.Status |= iptables.Confirmed
	}
	if out.Redirect != 0 {
		own := netip.AddrFrom4([4]byte{127, 0, 0, 1})
		if p.Dst.Addr().Is6() {
			own = netip.IPv6Loopback()
		}
		p.Dst, p.DstType, p.ReplySrcPort = netip.AddrPortFrom(own, out.Redirect), iptables.Local, out.Redirect
		p.Status |= iptables.Translated
	}
	in, err = Decide(r, iptables.Prerouting, p)
	in.Zone = out.Zone // a connection has its zone before the packet comes back
	return out, in, err
}

// walk is a packet's way through the chains of a hook.
type walk struct {
	iptables.Ruleset
	packet  Packet
	verdict Verdict
}

// chain applies the rules of a chain, until one of them decides.
func (w *walk) chain(c iptables.Chain) error {
	for i, rule := range c.Rules {
		matches, err := w.matches(rule.Conds)
		if err == nil && matches {
			w.verdict.Trace = append(w.verdict.Trace, c.Name+": "+rule.Comment)
			matches, err = w.act(rule.Action)
		}
		if err != nil {
			return fmt.Errorf("rule %d (%s): %w", i, rule.Comment, err)
		}
		if matches { // and decides
			return nil
		}
	}
	return nil
}

// act applies an action, and reports whether it ends the chain.
func (w *walk) act(a iptables.Action) (decided bool, err error) {
	switch a.Verb {
	case iptables.Return:
	case iptables.Redirect:
		w.verdict.Redirect = a.Port
	case iptables.Drop:
		w.verdict.Dropped = true
	case iptables.SetMark:
		w.mark(a.Num)
		return false, nil
	case iptables.Divert:
		w.mark(a.Num)
	case iptables.TProxy:
		if !w.packet.Diverts {
			return false, nil // the next rule follows
		}
		w.mark(a.Num)
		w.verdict.TProxy = a.Port
	case iptables.SaveMark:
		if w.packet.isTracked() {
			w.packet.ConnMark, w.verdict.ConnMark = w.packet.Mark, w.packet.Mark
		}
	case iptables.RestoreMark:
		w.mark(w.packet.ConnMark)
	case iptables.Zone, iptables.ZoneOneWay:
		w.verdict.Zone = cmp.Or(w.verdict.Zone, a.Num)
	case iptables.Jump:
		return w.jump(a.Chain)
	case iptables.Goto:
		_, err := w.jump(a.Chain)
		return true, err
	default:
		return false, fmt.Errorf("unknown verb %d", a.Verb)
	}
	return true, nil
}

// jump applies the rules of a chain without a hook. Only a redirect and a drop there end the chain that asks, too.
func (w *walk) jump(name string) (decided bool, err error) {
	for _, c := range w.Chains {
		if c.Name == name && c.Hook == "" {
			redirect := w.verdict.Redirect
			err := w.chain(c)
			return w.verdict.Dropped || w.verdict.Redirect != redirect, err
		}
	}
	return false, fmt.Errorf("no chain %s to jump to", name)
}

func (w *walk) mark(m uint32) { w.packet.Mark, w.verdict.Mark = m, m }

func (w *walk) matches(conds []iptables.Cond) (bool, error) {
	for i, c := range conds {
		ok, err := w.holds(c, conds[:i])
		if err != nil || !ok {
			return false, err
		}
	}
	return true, nil
}

// holds reports whether a condition holds, after those in before.
func (w *walk) holds(c iptables.Cond, before []iptables.Cond) (bool, error) {
	p := w.packet
	switch c.Field {
	case iptables.InIface:
		return (p.In.Name == c.Text) != c.Not, nil
	case iptables.OutIface:
		return (p.Out.Name == c.Text) != c.Not, nil
	case iptables.SrcAddr:
		return w.address(c, before, p.Src.Addr())
	case iptables.DstAddr:
		return w.address(c, before, p.Dst.Addr())
	case iptables.SrcPort:
		return w.port(c, before, p.Src.Port())
	case iptables.DstPort:
		return w.port(c, before, p.Dst.Port())
	case iptables.TCPFlags:
		if !slices.Contains(before, iptables.Cond{Field: iptables.Protocol, Num: iptables.TCP}) {
			return false, fmt.Errorf("flags without the protocol TCP before them")
		}
	default:
	}
	n, has, err := p.number(c.Field)
	switch {
	case err != nil || !has:
		return false, err
	case c.Set != "" || c.Text != "" || c.Prefix.IsValid():
		return false, fmt.Errorf("field %d is compared with more than a number", c.Field)
	case c.Field == iptables.Socket && c.Not:
		return false, fmt.Errorf("a packet without a socket")
	case c.Last != 0 && c.Field != iptables.OwnerUID:
		return false, fmt.Errorf("field %d is compared with a range", c.Field)
	case c.Last != 0:
		return (c.Num <= n && n <= c.Last) != c.Not, nil
	case c.Field == iptables.Socket:
		return n <= c.Num, nil
	case c.Field == iptables.State || c.Field == iptables.Status:
		return (n&c.Num != 0) != c.Not, nil
	}
	return (n == c.Num) != c.Not, nil
}

// address compares an address with a prefix, or with a set of them.
func (w *walk) address(c iptables.Cond, before []iptables.Cond, a netip.Addr) (bool, error) {
	family := familyOf(a)
	if !slices.Contains(before, iptables.Cond{Field: iptables.Family, Num: family}) {
		return false, fmt.Errorf("an address without its family before it")
	}
	prefixes := []netip.Prefix{c.Prefix}
	if c.Set != "" {
		set, err := w.set(c.Set, map[uint32]iptables.SetKind{iptables.IPv4: iptables.IPv4Set, iptables.IPv6: iptables.IPv6Set}[family])
		if err != nil {
			return false, err
		}
		prefixes = set.Prefixes
	}
	for _, p := range prefixes {
		if !p.IsValid() || familyOf(p.Addr()) != family {
			return false, fmt.Errorf("prefix %s in a rule of family %d", p, family)
		}
	}
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) }) != c.Not, nil
}

// port compares a port with a number, or with a set.
func (w *walk) port(c iptables.Cond, before []iptables.Cond, port uint16) (bool, error) {
	if !slices.Contains(before, iptables.Cond{Field: iptables.Protocol, Num: w.packet.Protocol}) {
		return false, fmt.Errorf("a port without its protocol before it")
	}
	if c.Set == "" {
		return (c.Num == uint32(port)) != c.Not, nil
	}
	set, err := w.set(c.Set, iptables.PortSet, iptables.RangeSet)
	in := slices.ContainsFunc(set.Ranges, func(r iptables.PortRange) bool { return r.First <= port && port <= r.Last })
	return in != c.Not, err
}

func (w *walk) set(name string, kinds ...iptables.SetKind) (iptables.Set, error) {
	i := slices.IndexFunc(w.Sets, func(s iptables.Set) bool { return s.Name == name })
	if i < 0 || !slices.Contains(kinds, w.Sets[i].Kind) {
		return iptables.Set{}, fmt.Errorf("no set %q of the kinds %d", name, kinds)
	}
	return w.Sets[i], nil
}

// number returns the value of a field. A packet that does not have it meets no condition on it, not even a negated one.
func (p Packet) number(f iptables.Field) (n uint32, has bool, err error) {
	switch f {
	case iptables.Family:
		return familyOf(p.Dst.Addr()), true, nil
	case iptables.Protocol:
		return p.Protocol, true, nil
	case iptables.OwnerUID:
		if p.Owner == nil {
			return 0, false, nil
		}
		return p.Owner.UID, true, nil
	case iptables.OwnerGID:
		if p.Owner == nil {
			return 0, false, nil
		}
		return p.Owner.GID, true, nil
	case iptables.Mark:
		return p.Mark, true, nil
	case iptables.ConnMark:
		return p.ConnMark, p.isTracked(), nil
	case iptables.State:
		return p.State, true, nil
	case iptables.Status:
		return p.Status, p.isTracked(), nil
	case iptables.Direction:
		if p.Reply {
			return iptables.Reply, p.isTracked(), nil
		}
		return 0, p.isTracked(), nil
	case iptables.ReplySrcPort:
		return uint32(p.ReplySrcPort), p.isTracked(), nil
	case iptables.InIndex:
		return p.In.Index, true, nil
	case iptables.OutIndex:
		return p.Out.Index, true, nil
	case iptables.SrcType:
		return p.SrcType, true, nil
	case iptables.DstType:
		return p.DstType, true, nil
	case iptables.TCPFlags:
		return p.Flags, p.Protocol == iptables.TCP, nil
	case iptables.Socket, iptables.Transparent:
		return uint32(max(p.Taker, PlainSocket) - PlainSocket), p.Taker != NoSocket, nil
	default:
		return 0, false, fmt.Errorf("unknown field %d", f)
	}
}

func familyOf(a netip.Addr) uint32 {
	if a.Is4() {
		return iptables.IPv4
	}
	return iptables.IPv6
}
