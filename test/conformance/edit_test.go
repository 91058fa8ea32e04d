package conformance

import (
	"strings"
	"sync/atomic"
	"testing"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/kernel"
	"istio-pod-network-controller/test/kerneltest"
)

const (
	// edits is how often a port or a CIDR is edited under load, and perEdit how many connections are made between two edits.
	edits   = 60
	perEdit = 50
)

// editStreams are connections that the proxy gets with each of editVariants, or never gets.
func editStreams() []stream {
	app := kerneltest.App
	return append(streams(),
		stream{"pod", app, "10.8.0.1:80", "WORLD:7000"},
		stream{"pod", app, "[fd00:8::1]:80", "WORLD:7000"},
		stream{"pod", app, "93.184.216.34:3306", "WORLD:7000"})
}

// editVariants differ in elements of sets: in ports, in neighbours of the streams' CIDRs, in both families at once. The last is captured by
// its port instead of its CIDR, which two sets of one chain say.
func editVariants() []iptables.Spec {
	base := func(change func(*iptables.Spec)) iptables.Spec {
		return with(func(s *iptables.Spec) {
			s.ExcludeOutboundPorts, s.ExcludeInboundPorts = []uint16{3306}, []uint16{15020}
			s.IncludeOutboundPorts = []uint16{81}
			s.IncludeCIDRs = iptables.CIDRs{List: prefixes("93.184.216.0/24", "fd00:99::/64", "10.0.0.0/8", "fd00:8::/32")}
			s.ExcludeCIDRs = prefixes("10.8.0.0/24", "fd00:8::/64")
			change(s)
		})
	}
	return []iptables.Spec{
		base(func(*iptables.Spec) {}),
		base(func(s *iptables.Spec) { s.ExcludeOutboundPorts = []uint16{3305, 3306, 3307} }),
		base(func(s *iptables.Spec) { s.ExcludeInboundPorts = []uint16{8079, 8081} }),
		base(func(s *iptables.Spec) {
			s.ExcludeCIDRs = append(s.ExcludeCIDRs, prefixes("10.8.1.0/24", "fd00:8:0:1::/64")...)
		}),
		base(func(s *iptables.Spec) {
			s.ExcludeCIDRs = append(s.ExcludeCIDRs, prefixes("10.7.255.0/24", "fd00:7::/32")...)
		}),
		base(func(*iptables.Spec) {}),
		base(func(s *iptables.Spec) {
			s.IncludeCIDRs.List = append(s.IncludeCIDRs.List, prefixes("93.184.215.0/24", "93.184.217.0/24", "fd00:98::/32")...)
		}),
		base(func(s *iptables.Spec) {
			s.IncludeOutboundPorts, s.IncludeCIDRs.List = []uint16{80, 81}, prefixes("10.0.0.0/8", "fd00:8::/32")
		}),
	}
}

// Nothing bypasses the proxy, is refused, hangs or is captured against the rules while ports and CIDRs are edited in place.
func TestApply_edits_leakNothing(t *testing.T) {
	t.Parallel()
	choice, err := kernel.NewChoice(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, w := choice.Nftables(t.Context()), newWorld(t, "ds")
	echoListeners(t, w)
	all := editVariants()
	place := podnet.Place{Path: w.pod().Path()}
	if _, err := b.Apply(t.Context(), place, configuration{spec: all[0]}.rules(t)); err != nil {
		t.Fatal(err)
	}
	identity, err := w.pod().Identity()
	if err != nil {
		t.Fatal(err)
	}
	least := edits / 2
	if identity.Cookie == 0 { // before Linux 5.14 nothing is remembered of a namespace, and only what is known is edited
		least = 0
	}
	var made, wrong atomic.Int64
	stop := w.load(t, editStreams(), 1, &made, &wrong)
	inPlace := 0
	for i := range edits {
		kerneltest.Eventually(t, "connections are made", func() bool { return made.Load() >= int64(i*perEdit) })
		want := configuration{spec: all[(i+1)%len(all)]}.rules(t)
		out, err := b.Apply(t.Context(), place, want)
		if err != nil || !out.Changed() {
			t.Fatalf("edit %d: changed %q, error %v", i, out.Drift, err)
		}
		if strings.Contains(out.Drift.String(), " entries in set ") || strings.Contains(out.Drift.String(), " entries of set ") {
			inPlace++
		}
		if out, err := b.Apply(t.Context(), place, want); err != nil || out.Changed() {
			t.Fatalf("after edit %d: changed %q, error %v", i, out.Drift, err)
		}
	}
	stop()
	if inPlace < least {
		t.Errorf("%d of %d edits were in place, want at least %d", inPlace, edits, least)
	}
	t.Logf("%d connections during %d edits, %d of them in place: %d went the wrong way or failed", made.Load(), edits, inPlace, wrong.Load())
}
