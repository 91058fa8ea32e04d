package conformance

import (
	"fmt"
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

// selfDial is a connection by which a proxy reaches itself.
type selfDial struct{ src, dst string }

// manyCIDRs are a thousand ranges of each family, with duplicates and overlaps. No probe goes to any of them.
func manyCIDRs() (out []netip.Prefix) {
	for i := range 1000 {
		out = append(out, prefixes(fmt.Sprintf("172.%d.%d.0/24", 16+i/256, i%256), fmt.Sprintf("fd01:%x::/32", i))...)
	}
	return append(out, prefixes("172.16.0.0/16", "172.16.5.0/24", "172.16.5.0/24", "fd01::/24")...)
}

// ownCases are settings that Istio does not have, and what its recorded pods leave out. Who decides what about a packet is shown by
// test/interpreter, for random settings; here connections are made, and answered.
func ownCases() map[string]ownCase {
	users := []iptables.Users{{First: 1300, Last: 1400}, {First: 2000, Last: 2000}, {First: 3000, Last: 3999, Port: 443}, {First: 4000, Last: 4000, Port: 53}}
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
		"IPv6 stays direct with TPROXY and DNS capture": {families: "ds", spec: with(func(s *iptables.Spec) {
			s.DirectIPv6, s.Mode, s.DNS = true, iptables.ModeTProxy, iptables.DNSAll
		}), lines: []string{
			"world 0 tcp 10.244.1.5:8080 = PROXY:15006", "world 0 tcp [fd00:10:244:1::5]:8080 = APP:8080",
			"pod 1000 udp 8.8.8.8:53 = PROXY:15053", "pod 1000 udp [fd00:10:96::10]:53 = WORLD:7000", "pod 1000 tcp [fd00:99::34]:80 = WORLD:7000",
		}},
		"excluded sources": {
			families: "ds", spec: with(func(s *iptables.Spec) { monitoring(s); s.ProxyUID = 0 }), later: ipv6Clients, lines: sourceLines(),
		},
		"excluded sources with TPROXY": {families: "ds", spec: with(func(s *iptables.Spec) { monitoring(s); tproxy(s) }), later: ipv6Clients, lines: sourceLines()},
		"excluded users": {families: "ds", spec: with(func(s *iptables.Spec) { s.ExcludeUsers, s.DNS = users, iptables.DNSAll }), lines: []string{
			"pod 1300 tcp 93.184.216.34:80 = WORLD:7000", "pod 1400/1000 tcp [fd00:99::34]:80 = WORLD:7000", "pod 1299 tcp 93.184.216.34:80 = PROXY:15001",
			"pod 3000 tcp 93.184.216.34:443 = WORLD:7000", "pod 3999 tcp [fd00:99::34]:443 = WORLD:7000", "pod 3000 tcp 93.184.216.34:80 = PROXY:15001",
			"pod 1300 udp 8.8.8.8:53 = WORLD:7000", "pod 3000 udp 8.8.8.8:53 = PROXY:15053", "pod 4000 udp [fd00:10:96::10]:53 = WORLD:7000",
			"pod 4000 tcp 8.8.8.8:53 = WORLD:7000", "pod 4000 tcp 93.184.216.34:80 = PROXY:15001",
			// The proxy is among the excluded users.
			"pod 1337 tcp 10.244.1.5:8080 = PROXY:15006", "pod 1337 tcp 93.184.216.34:80 = WORLD:7000",
		}},
		"ranges of included ports with TPROXY": {families: "ds", spec: with(func(s *iptables.Spec) {
			tproxy(s)
			s.IncludeInboundPorts, s.IncludeCIDRs = iptables.Ports{List: []uint16{22}}, iptables.CIDRs{}
			s.Ranges = iptables.Ranges{IncludeInbound: []iptables.PortRange{{First: 8000, Last: 8999}}, IncludeOutbound: []iptables.PortRange{{First: 80, Last: 90}}}
		}), lines: []string{
			"world 0 tcp 10.244.1.5:8080 = PROXY:15006", "world 0 tcp [fd00:10:244:1::5]:22 = PROXY:15006", "world 0 tcp 10.244.1.5:9090 = APP:9090",
			"world 0 tcp [fd00:10:244:1::5]:9999 = APP:9999", "pod 1000 tcp 93.184.216.34:90 = PROXY:15001", "pod 1000 tcp [fd00:99::34]:91 = WORLD:7000",
		}},
	}
}

// monitoring are clients whose connections are not redirected; the pod's own addresses are among them.
func monitoring(s *iptables.Spec) {
	s.ExcludeSources = prefixes("93.184.216.0/24", "10.244.1.5/32", "fd00:99::/64", "fd00:10:244:1::5/128")
}

// ipv6Clients adds the addresses of IPv6 clients: the kernel lets nobody bind an address that only a route makes local.
func ipv6Clients(t *testing.T, w world) {
	t.Helper()
	kerneltest.AddAddresses(t, w.spaces["world"], "w0", "fd00:99::34/128", "fd00:8::1/128")
}

// sourceLines are what holds in both modes where sources are excluded.
func sourceLines() []string {
	return []string{
		"world 0 tcp 10.244.1.5:8080 from 93.184.216.34 = APP:8080", "world 0 tcp [fd00:10:244:1::5]:8080 from fd00:99::34 = APP:8080",
		"world 0 tcp 10.244.1.5:8080 from 10.8.0.1 = PROXY:15006", "world 0 tcp [fd00:10:244:1::5]:8080 from fd00:8::1 = PROXY:15006",
		"world 0 tcp 10.244.1.5:8080 = PROXY:15006", "world 0 tcp [fd00:10:244:1::5]:8080 = PROXY:15006",
		"world 0 tcp 10.244.1.5:15021 from 93.184.216.34 = PROXY:15021",
		// What the pod sends is no client of its own, whatever its address.
		"pod 0/1337 tcp 10.244.1.5:8080 = PROXY:15006", "pod 0/1337 tcp [fd00:10:244:1::5]:8080 = PROXY:15006",
		"pod 1000 tcp 93.184.216.34:80 = PROXY:15001", "pod 1000 tcp [fd00:99::34]:80 = PROXY:15001",
	}
}

func TestRules_ourCases_takeTheRightPath(t *testing.T) {
	for _, b := range backends(t) {
		for name, c := range ownCases() {
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

// A running pod switches between capturing IPv6 and leaving it direct: its IPv6 rules are removed, and come back.
func TestRules_ipv6_isCapturedAndLetGo(t *testing.T) {
	for _, b := range backends(t) {
		for _, mode := range []iptables.Mode{iptables.ModeRedirect, iptables.ModeTProxy} {
			w := newWorld(t, "ds")
			capture := configuration{spec: with(func(s *iptables.Spec) { s.Mode = mode })}
			direct := configuration{spec: with(func(s *iptables.Spec) { s.Mode, s.DirectIPv6 = mode, true })}
			w.listen(t, capture)
			for i, c := range []configuration{capture, direct, capture, direct} {
				mustApply(t, b, w, c)
				want := []string{"pod 1000 tcp [fd00:99::34]:80 = PROXY:15001", "world 0 tcp [fd00:10:244:1::5]:8080 = PROXY:15006"}
				if c.spec.DirectIPv6 {
					want = []string{"pod 1000 tcp [fd00:99::34]:80 = WORLD:7000", "world 0 tcp [fd00:10:244:1::5]:8080 = APP:8080"}
				}
				probes, answers := parseLines(t, append(want, "pod 1000 tcp 93.184.216.34:80 = PROXY:15001"))
				w.compare(t, probes, answers)
				if out, err := b.Apply(t.Context(), w.pod().Path(), c.rules(t)); err != nil || out.Changed() {
					t.Errorf("%s, %s, step %d, again: changed %q, error %v", b.Name(), mode, i, out.Drift, err)
				}
			}
		}
	}
}
