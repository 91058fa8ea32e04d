package xtables

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/nftables"
	"istio-pod-network-controller/iptables/routing"
	"istio-pod-network-controller/test/kerneltest"
)

// subject is a backend with a pod of its own and the world around it.
type subject struct {
	name       string
	apply      func(context.Context, string, iptables.Ruleset) (iptables.Outcome, error)
	pod, world *netns.NS
}

// packet is one connection or datagram.
type packet struct {
	fromWorld bool
	owner     kerneltest.Owner
	network   string
	src, dst  string
}

func subjects(t *testing.T) []subject {
	t.Helper()
	out := []subject{{name: "nftables", apply: kerneltest.NewByPath(t, nftables.New(), routing.Remove).Apply}}
	for _, flavour := range flavours() {
		out = append(out, subject{name: "iptables " + string(flavour), apply: newBackend(t, flavour).Apply})
	}
	for i := range out {
		s := &out[i]
		s.pod, s.world = kerneltest.NewPod(t)
		for _, file := range []string{"all", "default", "eth0", "lo"} {
			kerneltest.Sysctl(t, s.pod, "net/ipv4/conf/"+file+"/rp_filter", "0")
		}
		s.listen(t)
	}
	return out
}

// listen opens what answers, by name, in all the places where a packet can end.
func (s *subject) listen(t *testing.T) {
	t.Helper()
	proxy := kerneltest.Owner{UID: 0, GID: 1337}
	for port, banner := range map[int]string{
		22: "APP", 53: "APP", 80: "APP", 8080: "APP", 9090: "APP", 15001: "PROXY", 15006: "PROXY", 15008: "PROXY", 15020: "PROXY", 15021: "PROXY",
	} {
		go kerneltest.Answer(kerneltest.ListenTCP(t, s.pod, proxy, true, fmt.Sprintf("[::]:%d", port)), fmt.Sprintf("%s:%d", banner, port))
	}
	for _, host := range []string{"127.0.0.1:15053", "[::1]:15053"} {
		kerneltest.ListenUDP(t, s.pod, kerneltest.Proxy, host, "PROXY:15053")
		go kerneltest.Answer(kerneltest.ListenTCP(t, s.pod, proxy, true, host), "PROXY:15053")
	}
	kerneltest.Listen(t, s.world, kerneltest.App, "WORLD", 22, 53, 80, 443, 8080, 9090, 15020)
	for _, host := range []string{kerneltest.World4, "[" + kerneltest.World6 + "]", kerneltest.Outside4, "[" + kerneltest.Outside6 + "]"} {
		kerneltest.ListenUDP(t, s.world, kerneltest.App, host+":53", "WORLD:53")
	}
}

// spec makes a valid spec, of values that the packets below meet.
func spec(r *rand.Rand) iptables.Spec {
	s := iptables.DefaultSpec()
	maybe := func(change func()) {
		if r.IntN(2) == 0 {
			change()
		}
	}
	ports := func() []uint16 { return some[uint16](r, 22, 53, 80, 443, 8080, 9090, 15001, 15008, 15021, 1, 65535) }
	ranges := func() (out []netip.Prefix) {
		for _, p := range some(r, "0.0.0.0/0", "::/0", "93.184.216.0/24", "93.184.216.34/32", "10.244.0.0/16", "2001:db8::/64", "fd00::/8", "10.244.1.5/32", "127.0.0.0/8") {
			out = append(out, netip.MustParsePrefix(p))
		}
		return out
	}
	s.Mode = []iptables.Mode{iptables.ModeRedirect, iptables.ModeTProxy}[r.IntN(2)]
	maybe(func() { s.IncludeCIDRs = iptables.CIDRs{List: ranges()} })
	maybe(func() { s.ExcludeCIDRs = ranges() })
	maybe(func() { s.IncludeInboundPorts = iptables.Ports{List: ports()} })
	s.IncludeOutboundPorts, s.ExcludeOutboundPorts = ports(), ports()
	maybe(func() { s.ExcludeInboundPorts = ports() })
	maybe(func() { s.OwnerGroups = iptables.Groups{List: some[uint32](r, 0, 888, 1000, 1337, 4294967294)} })
	if s.OwnerGroups.All {
		s.OwnerGroups.Exclude = some[uint32](r, 888, 1000)
	}
	maybe(func() { s.ExcludeSources = ranges() })
	maybe(func() {
		s.ExcludeUsers = some(r, iptables.Users{First: 888, Last: 888}, iptables.Users{First: 900, Last: 1400, Port: 80}, iptables.Users{First: 0, Last: 0},
			iptables.Users{First: 1000, Last: 4294967294, Port: 53}, iptables.Users{First: 1000, Last: 1000, Port: 443})
	})
	portRanges := func() []iptables.PortRange {
		return some(r, iptables.PortRange{First: 0, Last: 79}, iptables.PortRange{First: 50, Last: 53}, iptables.PortRange{First: 8000, Last: 9089}, iptables.PortRange{First: 9090, Last: 65535})
	}
	maybe(func() {
		s.Ranges = iptables.Ranges{ExcludeInbound: portRanges(), IncludeOutbound: portRanges(), ExcludeOutbound: portRanges()}
		if !s.IncludeInboundPorts.All {
			s.Ranges.IncludeInbound = portRanges()
		}
	})
	maybe(func() { s.DNS = iptables.DNSAll })
	maybe(func() {
		s.DNS, s.Resolvers = iptables.DNSResolvConf, []netip.Addr{netip.MustParseAddr(kerneltest.Outside4), netip.MustParseAddr(kerneltest.World6)}
	})
	maybe(func() { s.ProxyUID = 1000 })
	maybe(func() { s.LoopbackCIDR = netip.MustParsePrefix("127.0.0.0/8") })
	maybe(func() { s.DropInvalid = true })
	switch r.IntN(6) {
	case 0:
		s.ExcludeInterfaces = []string{"eth0"}
	case 1:
		s.ExcludeInterfaces = []string{"lo", "net1"}
	case 2:
		s.RerouteInterfaces, s.RerouteDNS = []string{"eth0"}, s.DNS != iptables.DNSOff
	}
	return s
}

func some[T any](r *rand.Rand, of ...T) (out []T) {
	for _, i := range r.Perm(len(of))[:r.IntN(len(of)/2+1)] {
		out = append(out, of[i])
	}
	return out
}

// packets are drawn from all that matters: who, from where, to what.
func packets(r *rand.Rand, n int) []packet {
	owners := []kerneltest.Owner{{UID: 1000, GID: 1000}, {UID: 1337, GID: 1337}, {UID: 0, GID: 1337}, {UID: 1337, GID: 0}, {UID: 888, GID: 888}}
	hosts4 := []string{kerneltest.Outside4, kerneltest.World4, kerneltest.Pod4, "127.0.0.1", "127.0.0.2"}
	hosts6 := []string{kerneltest.Outside6, kerneltest.World6, kerneltest.Pod6, "::1"}
	ports := []int{22, 53, 80, 443, 8080, 9090, 15001, 15006, 15008, 15020, 15021}
	var out []packet
	for range n {
		p := packet{owner: owners[r.IntN(len(owners))], network: "tcp"}
		host, port, src := hosts4[r.IntN(len(hosts4))], ports[r.IntN(len(ports))], "127.0.0.6"
		if r.IntN(2) == 0 {
			host, src = hosts6[r.IntN(len(hosts6))], "::6"
		}
		own := host == kerneltest.Pod4 || host == kerneltest.Pod6
		switch k := r.IntN(8); {
		case k < 3 && own:
			p.fromWorld = true
		case k == 3 && own:
			p.src = src
		case k == 4:
			p.network, port = "udp", 53
		}
		p.dst = netip.AddrPortFrom(netip.MustParseAddr(host), uint16(port)).String()
		out = append(out, p)
	}
	return out
}

// timedOut is the answer to a packet that was dropped, or that a busy machine has not answered in time.
const timedOut = "nobody in time"

// answers sends all the packets at once; one that is refused has the answer "".
func (s *subject) answers(t *testing.T, packets []packet, patience time.Duration) []string {
	t.Helper()
	out := make([]string, len(packets))
	var wg sync.WaitGroup
	for i, p := range packets {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			from := s.pod
			if p.fromWorld {
				from = s.world
			}
			var err error
			out[i], err = kerneltest.Ask(ctx, from, p.owner, p.network, p.src, p.dst)
			if ctx.Err() != nil || errors.Is(err, os.ErrDeadlineExceeded) {
				out[i] = timedOut
			}
		})
	}
	wg.Wait()
	return out
}

// compare names the packets that two subjects answer differently.
func (s *subject) compare(t *testing.T, first *subject, ask []packet, answers []string) (different []string) {
	t.Helper()
	got := s.answers(t, ask, 400*time.Millisecond)
	// A busy machine may have let the time run out, for both: what was not answered twice alike is asked again, patiently.
	var again []packet
	for i, p := range ask {
		if got[i] != answers[i] || got[i] == timedOut {
			again = append(again, p)
		}
	}
	a, b := first.answers(t, again, 3*time.Second), s.answers(t, again, 3*time.Second)
	for i, p := range again {
		if a[i] != b[i] {
			different = append(different, fmt.Sprintf("%+v: %s answers %q, %s %q", p, first.name, a[i], s.name, b[i]))
		}
	}
	return different
}

// Whatever a pod asks for, every backend decides the same on every packet.
func TestBackendsDecideAlike(t *testing.T) {
	const seeds, probes = 40, 24
	all := subjects(t)
	captured := 0
	for seed := range uint64(seeds) {
		r := rand.New(rand.NewPCG(seed, 7)) //nolint:gosec // a test wants repeatable numbers
		want, ask := spec(r), packets(r, probes)
		ruleset, err := iptables.Rules(want)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for _, s := range all {
			if _, err := s.apply(t.Context(), s.pod.Path(), ruleset); err != nil {
				t.Fatalf("seed %d, %s: %v", seed, s.name, err)
			}
		}
		answers := all[0].answers(t, ask, 400*time.Millisecond)
		for _, s := range all[1:] {
			for _, line := range s.compare(t, &all[0], ask, answers) {
				t.Errorf("seed %d: %s; spec %+v", seed, line, want)
			}
		}
		captured += strings.Count(strings.Join(answers, " "), "PROXY")
	}
	if captured < seeds*probes/5 {
		t.Errorf("of %d packets only %d met the proxy: the specs prove too little", seeds*probes, captured)
	}
	t.Logf("%d packets, %d of them captured, alike by %d backends", seeds*probes, captured, len(all))
}
