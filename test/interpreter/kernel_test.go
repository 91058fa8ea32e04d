package interpreter

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/nftables"
	"istio-pod-network-controller/iptables/xtables"
	"istio-pod-network-controller/test/kerneltest"
)

// How many random Specs each backend renders, and how many packets go through each rendering.
const (
	kernelSpecs   = 32
	kernelPackets = 250
)

// attempt is a packet under test, and the verdicts about it.
type attempt struct {
	id      uint32
	hook    iptables.Hook
	packet  Packet
	opening []Packet // packets that come before the rules
	want    map[iptables.Hook]Verdict
}

// The kernel decides about each packet as the interpreter does, with each backend: so they decide alike.
func TestRules_randomPackets_kernelAgrees(t *testing.T) {
	seed := seedOf(t)
	native := nftables.New()
	apply := map[string]func(context.Context, *netns.NS, iptables.Ruleset) error{
		"nftables": func(ctx context.Context, ns *netns.NS, r iptables.Ruleset) error {
			_, err := native.Apply(ctx, ns, r)
			return err
		},
	}
	for _, flavour := range []xtables.Flavour{xtables.NFT, xtables.Legacy} {
		kerneltest.ProgramPath(t, fmt.Sprintf("iptables-%s-restore", flavour))
		backend := xtables.New(t.Context(), xtables.Config{Flavour: flavour})
		apply["iptables "+string(flavour)] = func(ctx context.Context, ns *netns.NS, r iptables.Ruleset) error {
			_, err := backend.Apply(ctx, ns, r)
			return err
		}
	}
	for name, f := range apply {
		for i := range uint64(kernelSpecs) {
			t.Run(fmt.Sprintf("%s/%d", name, i), func(t *testing.T) {
				t.Parallel()
				wrong := disagree(t, newDraw(seed, 1000+i), f)
				if len(wrong) > 0 { // a busy kernel may lose packets; wrong rules are wrong again
					wrong = disagree(t, newDraw(seed, 1000+i), f)
				}
				for _, line := range wrong[:min(len(wrong), 5)] {
					t.Error(line)
				}
			})
		}
	}
}

// disagree returns how the kernel and the interpreter differ about packets through the rules of a Spec.
func disagree(t *testing.T, d draw, apply func(context.Context, *netns.NS, iptables.Ruleset) error) []string {
	t.Helper()
	s := d.spec()
	r, err := iptables.Rules(s)
	if err != nil {
		t.Fatal(err)
	}
	w := newWire(t)
	listeners := d.listen(t, w.pod, s)
	o := newObserver(t, w.pod)
	attempts := d.attempts(t, s, r, listeners)
	for _, a := range attempts {
		for _, p := range a.opening {
			w.send(t, p, 0)
		}
	}
	if err := apply(t.Context(), w.pod, r); err != nil {
		t.Fatal(err)
	}
	attempts = slices.DeleteFunc(attempts, func(a attempt) bool { return !w.send(t, a.packet, a.id) })
	if len(attempts) < kernelPackets*9/10 {
		t.Errorf("the kernel has taken %d packets of %d", len(attempts), kernelPackets)
	}
	wrong := o.differences(t, attempts)
	for end := time.Now().Add(2 * time.Second); len(wrong) > 0 && time.Now().Before(end); {
		wrong = o.differences(t, attempts) // packets may be under way
	}
	if len(wrong) > 0 {
		text, _ := json.Marshal(s)
		wrong = append([]string{fmt.Sprintf("%d differences of %d packets: %s", len(wrong), len(attempts), text)}, wrong...)
	}
	return wrong
}

// listen opens listeners at some ports, and one of the proxy unless it is away. It returns the ports.
func (d draw) listen(t *testing.T, pod *netns.NS, s iptables.Spec) (ports []uint16) {
	t.Helper()
	if d.chance(80) {
		ports = append(ports, s.InboundPort)
		kerneltest.ListenTCP(t, pod, kerneltest.Owner{GID: 1337}, true, fmt.Sprintf("[::]:%d", s.InboundPort))
	}
	for range 6 {
		if p := one(d, edgesOf(s).ports...); !slices.Contains(ports, p) && p != s.InboundPort {
			ports = append(ports, p)
			kerneltest.ListenTCP(t, pod, kerneltest.Owner{}, false, fmt.Sprintf("[::]:%d", p))
		}
	}
	return ports
}

// attempts draws packets of different connections.
func (d draw) attempts(t *testing.T, s iptables.Spec, r iptables.Ruleset, listeners []uint16) (out []attempt) {
	t.Helper()
	e := edgesOf(s)
	if s.DirectIPv6 { // ::6 is not the pod's own
		e.addrs = slices.DeleteFunc(e.addrs, func(a netip.Addr) bool { return a.String() == "::6" })
	}
	used := map[[2]netip.AddrPort]bool{}
	for len(out) < kernelPackets {
		a := attempt{id: 0x5eed0000 | uint32(len(out)), hook: one(d, iptables.Output, iptables.Prerouting), want: map[iptables.Hook]Verdict{}}
		a.packet = d.packet(e, a.hook)
		p := &a.packet
		if d.chance(70) {
			p.Src = netip.AddrPortFrom(p.Src.Addr(), uint16(20000+len(out)))
		}
		if used[[2]netip.AddrPort{p.Src, p.Dst}] || used[[2]netip.AddrPort{p.Dst, p.Src}] || p.In == Loopback() || a.hook == iptables.Output && p.Owner == nil {
			continue
		}
		used[[2]netip.AddrPort{p.Src, p.Dst}] = true
		p.meet(s, listeners)
		if p.Out.Name == "eth0" && r.Routing && p.Mark == iptables.RouteMark {
			p.Out = Loopback()
		}
		if p.Protocol == iptables.TCP {
			d.past(&a)
		}
		a.decide(t, r)
		out = append(out, a)
	}
	return out
}

// meet sets what the packet finds in the namespace, and what the test cannot give to a datagram.
func (p *Packet) meet(s iptables.Spec, listeners []uint16) {
	p.Diverts, p.Taker = slices.Contains(listeners, s.InboundPort), NoSocket
	switch {
	case p.Protocol == iptables.UDP && p.In.Name != "":
		p.Mark = 0
	case p.Protocol == iptables.UDP || !slices.Contains(listeners, p.Dst.Port()):
	case p.Dst.Port() == s.InboundPort:
		p.Taker = TransparentSocket // the kernel does not ask whether the address is the namespace's own
	default:
		p.Taker = PlainSocket
	}
}

// past draws what conntrack knows of a packet's connection.
func (d draw) past(a *attempt) {
	p := &a.packet
	p.State, p.Status, p.Reply = iptables.New, 0, false
	p.Flags = one[uint32](d, syn, syn, ack, syn|ack, rst, fin|ack)
	if d.chance(10) {
		p.State, p.ConnMark = iptables.Untracked, 0
		return
	}
	kind := d.IntN(4)
	if kind == 0 || p.Taker != NoSocket || p.Out == Loopback() || p.In.Name != "" && p.DstType != iptables.Local {
		if p.Flags != syn && p.Flags != ack {
			p.State, p.ConnMark = iptables.Invalid, 0
		}
		return
	}
	p.Status = iptables.Confirmed
	first := *p
	switch kind {
	case 1:
		p.Flags = syn
		a.opening = []Packet{first.flagged(syn)}
		return
	case 2:
		first = p.reversed()
		p.Reply = true
	}
	p.State, p.Flags = iptables.Established, one[uint32](d, ack, ack, fin|ack, syn)
	a.opening = []Packet{first.flagged(syn), first.reversed().flagged(syn | ack), first.flagged(ack)}
	if p.Reply && p.Flags == syn {
		p.State, p.Status, p.ConnMark = iptables.Invalid, 0, 0
		p.Reply = false
	}
}

// decide asks the interpreter.
func (a *attempt) decide(t *testing.T, r iptables.Ruleset) {
	t.Helper()
	var err error
	if a.hook == iptables.Prerouting {
		a.want[a.hook], err = Decide(r, a.hook, a.packet)
	} else {
		var out, in Verdict
		out, in, err = Send(r, a.packet)
		a.want[a.hook] = out
		// A redirect does not bring back the packet of a socket that is bound to an interface.
		if out.Redirect != 0 && !isBound(a.packet) || a.packet.Out == Loopback() && !out.Dropped {
			a.want[iptables.Prerouting] = in
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// differences compares what the observer has seen with what the interpreter wants.
func (o *observer) differences(t *testing.T, attempts []attempt) (out []string) {
	t.Helper()
	got := map[iptables.Hook]map[uint32]seen{iptables.Output: o.read(t, iptables.Output), iptables.Prerouting: o.read(t, iptables.Prerouting)}
	for _, a := range attempts {
		for hook, v := range a.want {
			was, passed := got[hook][a.id]
			if want := a.seen(v); passed == v.Dropped || passed && was != want {
				out = append(out, fmt.Sprintf("%s, after %d: %s: passed %v as %+v, want %+v (dropped %v) by %q", hook, len(a.opening), a.packet, passed, was, want, v.Dropped, v.Trace))
			}
		}
	}
	return out
}

// seen is what the observer sees of a packet with a verdict.
func (a attempt) seen(v Verdict) seen {
	s := seen{port: a.packet.Dst.Port(), mark: v.Mark, connMark: v.ConnMark, zone: uint16(v.Zone)}
	if to := a.want[iptables.Output].Redirect | a.want[iptables.Prerouting].Redirect; to != 0 {
		s.port, s.translated = to, a.packet.Dst.Port() != to || !isOwnOf(a.packet)
	}
	return s
}

// isOwnOf reports whether a redirect leaves the packet's address as it is.
func isOwnOf(p Packet) bool {
	if p.In.Name == "" {
		return p.Dst.Addr() == netip.AddrFrom4([4]byte{127, 0, 0, 1}) || p.Dst.Addr() == netip.IPv6Loopback()
	}
	return slices.ContainsFunc(podEnds()[p.In.Name], func(own netip.Prefix) bool { return own.Addr() == p.Dst.Addr() })
}

// The texts that people read are the rules that the backends program: what nft or iptables-restore makes of them is what a backend wants.
func TestRules_randomSpecs_textsLoadAsTheSameRules(t *testing.T) {
	seed := seedOf(t)
	load := map[string]func(*testing.T, iptables.Ruleset) (differences string){"nft": loadNft}
	for _, flavour := range []xtables.Flavour{xtables.NFT, xtables.Legacy} {
		kerneltest.ProgramPath(t, fmt.Sprintf("iptables-%s-restore", flavour))
		backend := xtables.New(t.Context(), xtables.Config{Flavour: flavour})
		load["iptables-"+string(flavour)] = func(t *testing.T, r iptables.Ruleset) string { return loadRestore(t, backend, r) }
	}
	for name, f := range load {
		for i := range uint64(kernelSpecs) {
			t.Run(fmt.Sprintf("%s/%d", name, i), func(t *testing.T) {
				t.Parallel()
				s := newDraw(seed, 2000+i).spec()
				if s.LoopbackCIDR.Bits() == 8 { // nft compares one byte then, which no backend does
					s.LoopbackCIDR = netip.MustParsePrefix("127.0.0.0/30")
				}
				r, err := iptables.HoldingRules(s, iptables.HoldBoth)
				if err != nil {
					t.Fatal(err)
				}
				if differences := f(t, r); differences != "" {
					text, _ := json.Marshal(s)
					t.Errorf("%s\n%s", text, differences)
				}
			})
		}
	}
}

// loadNft loads nft's text, and returns how the rules that are read back over netlink differ from those that it was made of.
func loadNft(t *testing.T, r iptables.Ruleset) string {
	t.Helper()
	ns := kerneltest.New(t)
	kerneltest.Shell(t, ns, "nft -f -", r.NftText(iptables.TextOptions{Replace: true}))
	have, _, err := nftables.New().Read(t.Context(), ns)
	if err != nil {
		t.Fatal(err)
	}
	have.Loopback, have.Routing, have.Table = r.Loopback, r.Routing, r.Table // are no part of nft's language
	for _, chains := range [][]iptables.Chain{r.Chains, have.Chains} {
		for i, c := range chains {
			if c.Hook == "" { // the kernel does not say what such a chain is for
				chains[i].Type, chains[i].Priority = "", 0
			}
		}
	}
	inAnyOrder := cmpopts.SortSlices(func(a, b iptables.Chain) bool { return a.Name < b.Name })
	return cmp.Diff(r, have, cmpopts.EquateComparable(netip.Prefix{}), cmpopts.EquateEmpty(), inAnyOrder)
}

// loadRestore loads the texts of both families with a flavour of iptables, and returns the differences that the backend sees.
func loadRestore(t *testing.T, b *xtables.Backend, r iptables.Ruleset) string {
	t.Helper()
	ns := kerneltest.New(t)
	for program, family := range map[string]uint32{"iptables": iptables.IPv4, "ip6tables": iptables.IPv6} {
		kerneltest.Shell(t, ns, fmt.Sprintf("%s-%s-restore --noflush", program, b.Flavour()), r.RestoreText(family))
	}
	drift, err := b.Verify(t.Context(), ns, r)
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(drift, func(d iptables.Difference) bool {
		return d.Kind == iptables.KindAddress || d.Kind == iptables.KindRoute
	}).Bounded().String()
}
