package conformance

import (
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"

	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// ownCase is a configuration that the recorded ones do not cover, with lines such as "pod 1000 tcp 93.184.216.34:80 = PROXY:15001": from
// where, by which uid and gid, how, to what, and who must answer. "from ADDRESS" behind the destination is the client's address.
type ownCase struct {
	families string
	spec     iptables.Spec
	// later changes the namespace after the rules are in.
	later func(*testing.T, world)
	lines []string
}

func with(change func(*iptables.Spec)) iptables.Spec {
	s := iptables.DefaultSpec()
	change(&s)
	return s
}

func prefixes(list ...string) (out []netip.Prefix) {
	for _, p := range list {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func tproxy(s *iptables.Spec) { s.Mode = iptables.ModeTProxy }

// manyCIDRs are a thousand ranges of each family, with duplicates and overlaps. No probe goes to any of them.
func manyCIDRs() (out []netip.Prefix) {
	for i := range 1000 {
		out = append(out, prefixes(fmt.Sprintf("172.%d.%d.0/24", 16+i/256, i%256), fmt.Sprintf("fd01:%x::/32", i))...)
	}
	return append(out, prefixes("172.16.0.0/16", "172.16.5.0/24", "172.16.5.0/24", "fd01::/24")...)
}

func ownCases() map[string]ownCase {
	return map[string]ownCase{
		"TPROXY with IPv6 alone": {families: "6", spec: with(tproxy), lines: []string{
			"world 0 tcp [fd00:10:244:1::5]:8080 = PROXY:15006", "world 0 tcp [fd00:10:244:1::5]:15021 = PROXY:15021",
			"pod 1000 tcp [fd00:10:244:1::5]:8080 = APP:8080", "pod 1000 tcp [fd00:99::34]:80 = PROXY:15001",
			"pod 0/1337 tcp [fd00:10:244:1::5]:8080 = PROXY:15006", "pod 1337 tcp [fd00:99::34]:80 = WORLD:7000",
		}},
		"TPROXY takes virtual machines' traffic for outbound": {families: "4", spec: with(func(s *iptables.Spec) {
			tproxy(s)
			s.RerouteInterfaces = []string{"k6t-eth0"}
			s.IncludeCIDRs = iptables.CIDRs{List: prefixes("93.184.0.0/16")}
		}), lines: []string{
			"vm 0 tcp 93.184.216.34:80 = PROXY:15001", "vm 0 tcp 10.8.0.1:80 = WORLD:7000", "vm 0 tcp 10.244.1.5:8080 = APP:8080",
			"world 0 tcp 10.244.1.5:8080 = PROXY:15006", "pod 1000 tcp 93.184.216.34:80 = PROXY:15001",
		}},
		"outbound only": {families: "ds", spec: with(func(s *iptables.Spec) { s.IncludeInboundPorts = iptables.Ports{} }), lines: []string{
			"world 0 tcp 10.244.1.5:8080 = APP:8080", "world 0 tcp [fd00:10:244:1::5]:8080 = APP:8080",
			"pod 1000 tcp 93.184.216.34:80 = PROXY:15001", "pod 1000 tcp [fd00:99::34]:80 = PROXY:15001",
		}},
		"each family has a list of its own": {families: "ds", spec: with(func(s *iptables.Spec) {
			s.IncludeCIDRs = iptables.CIDRs{List: prefixes("93.184.0.0/16", "fd00:8::/64")}
			s.ExcludeCIDRs = prefixes("93.184.216.34/32", "fd00:10:96::/112")
		}), lines: []string{
			"pod 1000 tcp 93.184.216.35:80 = PROXY:15001", "pod 1000 tcp 93.184.216.34:80 = WORLD:7000", "pod 1000 tcp 10.8.0.1:80 = WORLD:7000",
			"pod 1000 tcp [fd00:8::1]:80 = PROXY:15001", "pod 1000 tcp [fd00:99::34]:80 = WORLD:7000", "pod 1000 tcp [fd00:10:96::10]:80 = WORLD:7000",
		}},
		"a list of one family redirects nothing of the other": {families: "ds", spec: with(func(s *iptables.Spec) {
			s.IncludeCIDRs = iptables.CIDRs{List: prefixes("0.0.0.0/0")}
		}), lines: []string{"pod 1000 tcp 93.184.216.34:80 = PROXY:15001", "pod 1000 tcp [fd00:99::34]:80 = WORLD:7000"}},
		"200 ports": {families: "ds", spec: with(func(s *iptables.Spec) {
			for p := range uint16(200) {
				s.ExcludeInboundPorts = append(s.ExcludeInboundPorts, 9000+p)
				s.ExcludeOutboundPorts = append(s.ExcludeOutboundPorts, 8000+p)
			}
		}), lines: []string{
			"world 0 tcp 10.244.1.5:9090 = APP:9090", "world 0 tcp 10.244.1.5:8080 = PROXY:15006", "world 0 tcp [fd00:10:244:1::5]:9090 = APP:9090",
			"pod 1000 tcp 93.184.216.34:8000 = WORLD:7000", "pod 1000 tcp 93.184.216.34:8199 = WORLD:7000", "pod 1000 tcp [fd00:99::34]:8200 = PROXY:15001",
		}},
		"1,000 CIDRs": {families: "ds", spec: with(func(s *iptables.Spec) {
			s.ExcludeCIDRs = append(manyCIDRs(), prefixes("10.8.0.0/16", "fd00:8::/64")...)
		}), lines: []string{
			"pod 1000 tcp 10.8.0.1:80 = WORLD:7000", "pod 1000 tcp 93.184.216.34:80 = PROXY:15001",
			"pod 1000 tcp [fd00:8::1]:80 = WORLD:7000", "pod 1000 tcp [fd00:99::34]:80 = PROXY:15001",
		}},
		"an IPv6 address that comes later": {
			families: "4", spec: iptables.DefaultSpec(), later: func(t *testing.T, w world) {
				t.Helper()
				kerneltest.AddAddresses(t, w.pod(), "eth0", "fd00:10:244:1::5/64")
				kerneltest.AddRoute(t, w.pod(), "::/0", "fd00:10:244:1::1")
			},
			lines: []string{"pod 1000 tcp [fd00:99::34]:80 = PROXY:15001", "world 0 tcp [fd00:10:244:1::5]:8080 = PROXY:15006"},
		},
		"lookups to the resolvers of resolv.conf": {families: "ds", spec: with(func(s *iptables.Spec) {
			s.DNS = iptables.DNSResolvConf
			s.Resolvers = []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:10:96::10")}
		}), lines: []string{
			"pod 1000 udp 10.96.0.10:53 = PROXY:15053", "pod 1000 tcp 10.96.0.10:53 = PROXY:15053", "pod 1000 udp [fd00:10:96::10]:53 = PROXY:15053",
			"pod 1000 udp 8.8.8.8:53 = WORLD:7000", "pod 1000 tcp 8.8.8.8:53 = PROXY:15001", "pod 1000 tcp 10.244.1.5:53 = PROXY:15001",
			"pod 1337 udp 10.96.0.10:53 = WORLD:7000",
		}},
		"excluded owner groups": {families: "4", spec: with(func(s *iptables.Spec) {
			s.OwnerGroups = iptables.Groups{All: true, Exclude: []uint32{888, 777}}
			s.DNS = iptables.DNSAll
		}), lines: []string{
			"pod 1000/888 tcp 93.184.216.34:80 = WORLD:7000", "pod 1000/777 udp 8.8.8.8:53 = WORLD:7000",
			"pod 1000 tcp 93.184.216.34:80 = PROXY:15001", "pod 1000 udp 8.8.8.8:53 = PROXY:15053",
		}},
	}
}

func TestRules_ourCases_takeTheRightPath(t *testing.T) {
	for _, b := range backends(t) {
		cases := ownCases()
		maps.Copy(cases, moreCases())
		maps.Copy(cases, excludeCases())
		for name, c := range cases {
			t.Run(b.Name()+"/"+name, func(t *testing.T) {
				w := newWorld(t, c.families)
				setup := configuration{name: name, families: c.families, spec: c.spec}
				w.listen(t, setup)
				mustApply(t, b, w, setup)
				if c.later != nil {
					c.later(t, w)
				}
				probes, want := parseLines(t, c.lines)
				w.compare(t, probes, want)
			})
		}
	}
}

func parseLines(t *testing.T, lines []string) (probes []probe, want map[string]string) {
	t.Helper()
	want = map[string]string{}
	for _, line := range lines {
		ask, answer, _ := strings.Cut(line, " = ")
		p := probe{}
		var owner, dst string
		if _, err := fmt.Sscan(ask, &p.from, &owner, &p.Proto, &dst); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		uid, gid, both := strings.Cut(owner, "/")
		if !both {
			gid = uid
		}
		if _, err := fmt.Sscan(uid+" "+gid, &p.UID, &p.GID); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if _, src, ok := strings.Cut(ask, " from "); ok {
			p.Src = src
		}
		addr := netip.MustParseAddrPort(dst)
		p.ID, p.Dst, p.Port = strings.Join(strings.Fields(ask)[1:], "-"), addr.Addr().String(), addr.Port()
		probes, want[p.row()] = append(probes, p), answer
	}
	return probes, want
}

// Istio's own acceptance test, which its validation container makes in every mode that Istio injects: as the proxy's user,
// from loopback to the passthrough address, on a port that nobody listens on.
func TestRules_istiosValidation_passes(t *testing.T) {
	cases := map[string]struct {
		owner    kerneltest.Owner
		src, dst string
	}{
		"IPv4":                 {kerneltest.Proxy, "127.0.0.1", "127.0.0.6:15002"},
		"IPv6":                 {kerneltest.Proxy, "::1", "[::6]:15002"},
		"IPv4, TPROXY's owner": {kerneltest.Owner{UID: 0, GID: 1337}, "127.0.0.1", "127.0.0.6:15002"},
		"IPv6, TPROXY's owner": {kerneltest.Owner{UID: 0, GID: 1337}, "::1", "[::6]:15002"},
	}
	for _, b := range backends(t) {
		for _, mode := range []iptables.Mode{iptables.ModeRedirect, iptables.ModeTProxy} {
			w := newWorld(t, "ds")
			setup := configuration{spec: with(func(s *iptables.Spec) { s.Mode = mode })}
			w.listen(t, setup)
			mustApply(t, b, w, setup)
			for name, c := range cases {
				if mode == iptables.ModeRedirect && c.owner.UID == 0 {
					continue // only TPROXY's proxy runs as root
				}
				t.Run(fmt.Sprintf("%s/%s/%s", b.Name(), mode, name), func(t *testing.T) {
					got, err := kerneltest.Dial(t.Context(), w.pod(), c.owner, c.src, c.dst)
					if err != nil || got.Banner != "PROXY:15006" || got.Dst != netip.MustParseAddrPort(c.dst) {
						t.Errorf("answered by %q as %s, error %v", got.Banner, got.Dst, err)
					}
				})
			}
		}
	}
}

// A proxy that takes its own listener for the destination is refused, instead of dialling itself for ever.
func TestRules_proxyCallsItself_doesNotLoop(t *testing.T) {
	for _, b := range backends(t) {
		for _, mode := range []iptables.Mode{iptables.ModeRedirect, iptables.ModeTProxy} {
			w := newWorld(t, "ds")
			setup := configuration{spec: with(func(s *iptables.Spec) { s.Mode = mode })}
			w.listen(t, setup)
			mustApply(t, b, w, setup)
			for _, d := range selfDials() {
				if got, err := kerneltest.Dial(t.Context(), w.pod(), kerneltest.Proxy, d.src, d.dst); err == nil {
					t.Errorf("%s, %s: from %q to %s answered by %s", b.Name(), mode, d.src, d.dst, got.Banner)
				}
			}
		}
	}
}

type selfDial struct{ src, dst string }

// selfDials are all the ways for a proxy to dial its own listeners.
func selfDials() (out []selfDial) {
	for _, family := range []struct {
		own []string
		src string
	}{{[]string{"10.244.1.5", "127.0.0.1"}, "127.0.0.6"}, {[]string{"[fd00:10:244:1::5]", "[::1]"}, "::6"}} {
		for _, dst := range family.own {
			for _, src := range []string{"", family.src} {
				out = append(out, selfDial{src, dst + ":15001"}, selfDial{src, dst + ":15006"})
			}
		}
	}
	return out
}
