package kernel

import (
	"context"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// BenchmarkUnchangedApply measures the CPU time of Apply where the rules are in force, over many namespaces in turn. 250 sandboxes that
// are verified every 10 s use 0.5 % of a core at 200 us each. The pause stands for the time between two of them.
func BenchmarkUnchangedApply(b *testing.B) {
	for name, pause := range map[string]time.Duration{"at once": 0, "with pauses": 3 * time.Millisecond} {
		b.Run(name, func(b *testing.B) { unchangedApply(b, pause) })
	}
}

func unchangedApply(b *testing.B, pause time.Duration) {
	b.Helper()
	e, want := ordinary(b)
	places := programmedPlaces(b, e, want)
	used, n := time.Duration(0), 0
	for b.Loop() {
		if pause > 0 {
			<-time.After(pause)
		}
		before := processCPU(b)
		out, err := e.Apply(b.Context(), places[n%len(places)], want)
		if used += processCPU(b) - before; err != nil || out.Changed() {
			b.Fatalf("changed %q, error %v", out.Drift, err)
		}
		n++
	}
	b.ReportMetric(float64(used.Microseconds())/float64(n), "cpu-us/op")
}

// ordinary returns the nftables backend, and the rules of an ordinary pod.
func ordinary(b *testing.B) (Backend, iptables.Ruleset) {
	b.Helper()
	c, err := NewChoice(nil, nil)
	if err != nil {
		b.Fatal(err)
	}
	want, err := iptables.Rules(iptables.DefaultSpec())
	if err != nil {
		b.Fatal(err)
	}
	return c.Nftables(b.Context()), want
}

// programmedPlaces are namespaces that hold the rules, which e remembers.
func programmedPlaces(b *testing.B, e Backend, want iptables.Ruleset) (out []podnet.Place) {
	b.Helper()
	for range 20 {
		place := podnet.Place{Path: kerneltest.New(b).Path()}
		var err error
		if place.Identity, err = e.Identify(place.Path); err != nil {
			b.Fatal(err)
		}
		for range 2 {
			if _, err := e.Apply(b.Context(), place, want); err != nil {
				b.Fatal(err)
			}
		}
		out = append(out, place)
	}
	return out
}

// processCPU is the CPU time that this process has used.
func processCPU(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkListening measures the CPU time of asking who listens, over many namespaces in turn.
func BenchmarkListening(b *testing.B) {
	e, want := ordinary(b)
	places := programmedPlaces(b, e, want)
	used, n := time.Duration(0), 0
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	for b.Loop() {
		before := processCPU(b)
		_, err := e.Listening(ctx, places[n%len(places)], func(uint32) bool { return false })
		if used += processCPU(b) - before; err != nil {
			b.Fatal(err)
		}
		n++
	}
	b.ReportMetric(float64(used.Microseconds())/float64(n), "cpu-us/op")
}

// BenchmarkEdit measures the CPU time of an edit of one CIDR, of an edit that refills all chains, and of the first programming of a fresh
// namespace with the same rules, in turn.
func BenchmarkEdit(b *testing.B) {
	for name, n := range map[string]int{"1 CIDR": 1, "20,000 CIDRs": 20_000} {
		b.Run(name, func(b *testing.B) {
			e, _ := ordinary(b)
			wants := []iptables.Ruleset{beside(b, n, 15001, 0), beside(b, n, 15001, 1), beside(b, n, 16001, 0)}
			place := programmedPlaces(b, e, wants[0])[0]
			used := map[string]time.Duration{}
			apply := func(what string, place podnet.Place, want iptables.Ruleset) {
				before := processCPU(b)
				out, err := e.Apply(b.Context(), place, want)
				if used[what] += processCPU(b) - before; err != nil || !out.Changed() {
					b.Fatalf("changed %q, error %v", out.Drift, err)
				}
			}
			runs := 0
			for b.Loop() {
				fresh := podnet.Place{Path: kerneltest.New(b).Path()}
				apply("fresh", fresh, wants[0])
				apply("edit", place, wants[1])
				apply("edit", place, wants[0])
				apply("refill", place, wants[2])
				apply("refill", place, wants[0])
				if _, err := e.Apply(b.Context(), place, wants[0]); err != nil { // which is remembered
					b.Fatal(err)
				}
				runs++
			}
			for what, times := range map[string]int{"fresh": 1, "edit": 2, "refill": 2} {
				b.ReportMetric(float64(used[what].Microseconds())/float64(runs*times), what+"-cpu-us")
			}
			b.ReportMetric(float64(used["edit"])/2/float64(used["fresh"]), "edit/fresh")
		})
	}
}

// beside returns rules that exclude n CIDRs, the last of which has a number.
func beside(b *testing.B, n int, proxy uint16, last byte) iptables.Ruleset {
	b.Helper()
	s := iptables.DefaultSpec()
	s.OutboundPort = proxy
	for i := range n - 1 {
		s.ExcludeCIDRs = append(s.ExcludeCIDRs, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 25))
	}
	s.ExcludeCIDRs = append(s.ExcludeCIDRs, netip.PrefixFrom(netip.AddrFrom4([4]byte{11, last, 0, 0}), 16))
	r, err := iptables.Rules(s)
	if err != nil {
		b.Fatal(err)
	}
	return r
}
