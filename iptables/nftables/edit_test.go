package nftables

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/rawnetlink"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// mustEdit edits what a namespace holds, and reports whether it was possible. It must be as many transactions as said.
func mustEdit(t *testing.T, b byPath, ns *netns.NS, have, want iptables.Ruleset) (done bool) {
	t.Helper()
	_, err := visit(t.Context(), b, ns.Path(), func(ctx context.Context, n *netns.NS) (_ struct{}, err error) {
		before := generationOf(ctx, t, n)
		drift := iptables.Drift(nil)
		drift, done, err = b.own.Edit(ctx, n, before, have, want)
		if done && (len(drift) == 0 || generationOf(ctx, t, n) != before+1) {
			t.Errorf("changed %q, from generation %d to %d", drift, before, generationOf(ctx, t, n))
		}
		if !done && generationOf(ctx, t, n) != before {
			t.Error("not done, and something was written")
		}
		return struct{}{}, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return done
}

func generationOf(ctx context.Context, t *testing.T, ns *netns.NS) uint32 {
	t.Helper()
	answers, err := ask(ctx, ns, rawnetlink.Nftables(unix.NFT_MSG_GETGEN, unix.NFPROTO_UNSPEC))
	if err != nil {
		t.Fatal(err)
	}
	return binary.BigEndian.Uint32(find(answers[0], unix.NFTA_GEN_ID))
}

func list4(cidrs ...string) (out []netip.Prefix) {
	for _, c := range cidrs {
		out = append(out, netip.MustParsePrefix(c))
	}
	return out
}

// Elements change by one transaction, unless a packet could meet the sets in a state that is neither the old nor the new one.
func TestEdit_otherElements_isOneTransaction(t *testing.T) {
	excluded := func(cidrs ...string) func(*iptables.Spec) {
		return func(s *iptables.Spec) { s.ExcludeCIDRs = list4(cidrs...) }
	}
	ports := func(exclude, include []uint16) func(*iptables.Spec) {
		return func(s *iptables.Spec) { s.ExcludeOutboundPorts, s.IncludeOutboundPorts = exclude, include }
	}
	for name, c := range map[string]struct {
		from, to func(*iptables.Spec)
		steps    bool
	}{
		"a port more":                      {from: ports([]uint16{1}, nil), to: ports([]uint16{1, 2}, nil)},
		"a port less":                      {from: ports([]uint16{1, 65535}, nil), to: ports([]uint16{1}, nil)},
		"one port for another":             {from: ports([]uint16{1, 3}, nil), to: ports([]uint16{2, 3}, nil)},
		"a port from exclude to include":   {from: ports([]uint16{1, 2}, []uint16{3}), to: ports([]uint16{1}, []uint16{2, 3}), steps: true},
		"the first port":                   {to: ports([]uint16{15020, 1}, nil)},
		"no port any more":                 {from: ports([]uint16{1}, nil), to: ports(nil, nil), steps: true},
		"another port of the proxy":        {from: ports([]uint16{1}, nil), to: func(s *iptables.Spec) { s.ExcludeOutboundPorts, s.OutboundPort = []uint16{2}, 16001 }, steps: true},
		"another mode":                     {to: func(s *iptables.Spec) { s.Mode = iptables.ModeTProxy }, steps: true},
		"an inbound and an outbound port":  {from: func(s *iptables.Spec) { s.ExcludeInboundPorts, s.ExcludeOutboundPorts = []uint16{1}, []uint16{1} }, to: func(s *iptables.Spec) { s.ExcludeInboundPorts, s.ExcludeOutboundPorts = []uint16{2}, []uint16{2} }},
		"a CIDR more, in front":            {from: excluded("10.1.0.0/16"), to: excluded("10.0.0.0/16", "10.1.0.0/16")},
		"a CIDR more, behind":              {from: excluded("10.1.0.0/16"), to: excluded("10.1.0.0/16", "10.2.0.0/16")},
		"a CIDR less between neighbours":   {from: excluded("10.0.0.0/16", "10.1.0.0/16", "10.2.0.0/16"), to: excluded("10.0.0.0/16", "10.2.0.0/16")},
		"a CIDR for its neighbour":         {from: excluded("10.1.0.0/16"), to: excluded("10.0.0.0/16")},
		"CIDRs of both families":           {from: excluded("10.1.0.0/16", "fd00::/64"), to: excluded("10.2.0.0/16", "fd01::/64")},
		"the end of the address space":     {from: excluded("10.1.0.0/16", "128.0.0.0/2"), to: excluded("10.1.0.0/16", "192.0.0.0/2")},
		"its beginning":                    {from: excluded("10.1.0.0/16"), to: excluded("0.0.0.0/8", "10.1.0.0/16")},
		"two that become one":              {from: excluded("10.0.0.0/9", "10.128.0.0/9"), to: excluded("10.0.0.0/8"), steps: true},
		"one that becomes two":             {from: excluded("10.0.0.0/8"), to: excluded("10.0.0.0/9", "10.128.0.0/9"), steps: true},
		"one inside another":               {from: excluded("10.0.0.0/8"), to: excluded("10.0.0.0/8", "10.1.0.0/16", "11.0.0.0/8")},
		"one around another":               {from: excluded("10.1.0.0/16"), to: excluded("10.0.0.0/8", "10.1.0.0/16"), steps: true},
		"a first CIDR of the other family": {from: excluded("10.1.0.0/16"), to: excluded("10.1.0.0/16", "fd00::/64"), steps: true},
	} {
		t.Run(name, func(t *testing.T) {
			b, ns, from, to := newByPath(t), kerneltest.New(t), rules(t, c.from), rules(t, c.to)
			mustApply(t, b, ns, from)
			if done := mustEdit(t, b, ns, from, to); done == c.steps {
				t.Errorf("in one transaction: %v", done)
			}
			if mustApply(t, b, ns, to) == !c.steps {
				t.Error("the apply that followed had something to do, or nothing")
			}
			mustHold(t, ns, to)
		})
	}
}

// Whatever is wanted from list to list, the namespace holds it: read back, the table is the same as one that was made anew.
func TestEdit_listsAtRandom_areReadBack(t *testing.T) {
	r, list := rand.New(rand.NewPCG(1, 2)), []netip.Prefix{} //nolint:gosec // a test wants repeatable numbers
	random := func(s *iptables.Spec) {
		for range 1 + r.IntN(2) { // dense: most have neighbours
			if len(list) > 24 || len(list) > 0 && r.IntN(2) == 0 {
				i := r.IntN(len(list))
				list = slices.Delete(list, i, i+1)
			}
			bits := 5 + r.IntN(4)
			list = append(list, netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(r.IntN(256))}), bits).Masked())
			list = append(list, netip.PrefixFrom(netip.AddrFrom16([16]byte{byte(r.IntN(256))}), bits).Masked())
		}
		s.ExcludeCIDRs = append(slices.Clone(list), list4("10.255.0.0/16", "fd00:ffff::/64")...) // so that the sets are always there
	}
	b, ns, have, edited := newByPath(t), kerneltest.New(t), rules(t, random), 0
	mustApply(t, b, ns, have)
	for round := range 150 {
		want := rules(t, random)
		if mustEdit(t, b, ns, have, want) {
			edited++
		}
		mustApply(t, b, ns, want)
		if drift, err := b.Verify(t.Context(), ns.Path(), want); err != nil || len(drift) > 0 {
			t.Fatalf("round %d: %q, %v", round, drift, err)
		}
		have = want
	}
	if edited < 50 || edited > 145 {
		t.Errorf("%d edits of 150 changes prove too little", edited)
	}
}

// A table that somebody has changed since is read instead.
func TestEdit_changedSince_isRefused(t *testing.T) {
	from := rules(t, func(s *iptables.Spec) { s.ExcludeOutboundPorts = []uint16{1} })
	to := rules(t, func(s *iptables.Spec) { s.ExcludeOutboundPorts = []uint16{2} })
	b, ns := newByPath(t), kerneltest.New(t)
	mustApply(t, b, ns, from)
	_, err := visit(t.Context(), b, ns.Path(), func(ctx context.Context, n *netns.NS) (done bool, err error) {
		earlier := generationOf(ctx, t, n) - 1
		if _, done, err = b.own.Edit(ctx, n, earlier, from, to); done {
			t.Error("edited at a later generation")
		}
		return done, err
	})
	if err != nil {
		t.Fatal(err)
	}
	mustHold(t, ns, from)
}

// Why two sets of one chain are not changed together: a packet that both the old and the new rules capture could pass between.
func TestEdits_twoSetsOfOneChain_wouldLetAPacketBy(t *testing.T) {
	captures := func(ports, cidrs bool) bool { return ports || cidrs } // the chain looks up included ports, then included CIDRs
	oldPorts, oldCIDRs, newPorts, newCIDRs := false, true, true, false
	if !captures(oldPorts, oldCIDRs) || !captures(newPorts, newCIDRs) || captures(oldPorts, newCIDRs) {
		t.Fatal("the example is wrong")
	}
	include := func(ports []uint16, cidrs ...string) iptables.Ruleset {
		return rules(t, func(s *iptables.Spec) {
			s.IncludeOutboundPorts, s.IncludeCIDRs = ports, iptables.CIDRs{List: list4(cidrs...)}
		})
	}
	if all := edits(include([]uint16{1}, "10.0.0.0/8", "11.0.0.0/8"), include([]uint16{1, 80}, "11.0.0.0/8")); len(all) > 0 {
		t.Errorf("changed together: %v", all)
	}
}

// Beside thousands of entries only those are sent that come or go.
func TestEditing_namesOnlyWhatDiffers(t *testing.T) {
	from := rules(t, func(s *iptables.Spec) { s.ExcludeCIDRs = manyCIDRs() })
	to := rules(t, func(s *iptables.Spec) { s.ExcludeCIDRs = slices.Concat(manyCIDRs()[2:], list4("172.16.0.0/12")) })
	all := edits(from, to)
	if n := len(editing(all, ".0")); n != 3 {
		t.Errorf("%d messages, want one a family that loses an entry, and one that gains one", n)
	}
	if got := strings.Join(strings.Fields(editDrift(all).String()), " "); got != "- 1 entries of set exclude-cidr4 + 1 entries in set exclude-cidr4 + 1 entries in set exclude-cidr6" {
		t.Errorf("%q", got)
	}
}
