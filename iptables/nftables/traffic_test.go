package nftables

import (
	"net/netip"
	"strings"
	"testing"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// probe is one connection: from where, by whom, to what, and who must answer believing what destination was meant.
type probe struct {
	world    bool
	owner    kerneltest.Owner
	src, dst string
	want     string // banner; "" = nobody
}

// listenAll opens the listeners that answer for the application, the proxy and the world beyond.
func listenAll(t *testing.T, pod, world *netns.NS) {
	t.Helper()
	kerneltest.Listen(t, pod, kerneltest.App, "APP", 8080, 9090)
	kerneltest.Listen(t, pod, kerneltest.Proxy, "PROXY", 15001, 15006, 15008, 15020, 15021, 15090)
	kerneltest.Listen(t, world, kerneltest.App, "WORLD", 80, 443, 3306, 15020)
}

func (p probe) run(t *testing.T, pod, world *netns.NS) {
	t.Helper()
	from := pod
	if p.world {
		from = world
	}
	got, err := kerneltest.Dial(t.Context(), from, p.owner, p.src, p.dst)
	if p.want == "" {
		if err == nil {
			t.Errorf("%s -> %s was answered by %s", p.src, p.dst, got.Banner)
		}
		return
	}
	if err != nil || got.Banner != p.want {
		t.Errorf("%s -> %s: answered by %q, want %q (%v)", p.src, p.dst, got.Banner, p.want, err)
		return
	}
	if got.Dst != netip.MustParseAddrPort(p.dst) {
		t.Errorf("%s -> %s: the destination was taken for %s", p.src, p.dst, got.Dst)
	}
}

// trafficCase is a change of the default spec and what it does to traffic.
type trafficCase struct {
	change func(*iptables.Spec)
	probes []probe
}

func trafficCases() map[string]trafficCase {
	app, proxy := kerneltest.App, kerneltest.Proxy
	proxyGroup := kerneltest.Owner{UID: 0, GID: 1337}
	return map[string]trafficCase{
		"everything by default": {probes: []probe{
			{owner: app, dst: "OUT:80", want: "PROXY:15001"},
			{owner: app, dst: "OUT:7", want: "PROXY:15001"},
			{owner: app, dst: "OUT:15020", want: "WORLD:15020"},
			{owner: app, dst: "POD:8080", want: "APP:8080"},
			{owner: app, dst: "LO:8080", want: "APP:8080"},
			{owner: proxy, dst: "OUT:80", want: "WORLD:80"},
			{owner: proxyGroup, dst: "OUT:80", want: "WORLD:80"},
			{owner: proxy, dst: "POD:8080", want: "PROXY:15006"},
			{owner: proxy, dst: "LO:8080", want: "APP:8080"},
			{owner: proxy, dst: "POD:15008", want: "PROXY:15008"},
			{owner: proxy, src: "PASS", dst: "POD:8080", want: "APP:8080"},
			{world: true, owner: app, dst: "POD:8080", want: "PROXY:15006"},
			{world: true, owner: app, dst: "POD:7", want: "PROXY:15006"},
			{world: true, owner: app, dst: "POD:15021", want: "PROXY:15021"},
			{world: true, owner: app, dst: "POD:15008", want: "PROXY:15008"},
		}},
		"inbound ports by a list, where excludes do not count": {
			change: func(s *iptables.Spec) {
				s.IncludeInboundPorts = iptables.Ports{List: []uint16{8080, 15021}}
			},
			probes: []probe{
				{world: true, owner: app, dst: "POD:8080", want: "PROXY:15006"},
				{world: true, owner: app, dst: "POD:9090", want: "APP:9090"},
				{world: true, owner: app, dst: "POD:15021", want: "PROXY:15006"},
			},
		},
		"no inbound capture": {
			change: func(s *iptables.Spec) { s.IncludeInboundPorts = iptables.Ports{} },
			probes: []probe{{world: true, owner: app, dst: "POD:8080", want: "APP:8080"}, {owner: app, dst: "OUT:80", want: "PROXY:15001"}},
		},
		"excluded destinations and ports": {
			change: func(s *iptables.Spec) {
				s.ExcludeCIDRs = []netip.Prefix{netip.MustParsePrefix("93.184.0.0/16"), netip.MustParsePrefix("2001:db8::/64")}
				s.IncludeOutboundPorts = []uint16{443}
			},
			probes: []probe{
				{owner: app, dst: "OUT:80", want: "WORLD:80"},
				{owner: app, dst: "OUT:443", want: "WORLD:443"},
				{owner: app, dst: "GW:80", want: "PROXY:15001"},
			},
		},
		"included destinations and ports": {
			change: func(s *iptables.Spec) {
				s.IncludeCIDRs = iptables.CIDRs{List: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}}
				s.IncludeOutboundPorts = []uint16{443}
			},
			probes: []probe{
				{owner: app, dst: "OUT:80", want: "WORLD:80"},
				{owner: app, dst: "OUT:443", want: "PROXY:15001"},
				{owner: app, dst: "GW:80", want: "PROXY:15001"},
			},
		},
	}
}

func TestRedirectedTraffic(t *testing.T) {
	for name, c := range trafficCases() {
		t.Run(name, func(t *testing.T) {
			pod, world := kerneltest.NewPod(t)
			b := newByPath(t)
			listenAll(t, pod, world)
			mustApply(t, b, pod, rules(t, c.change))
			for _, family := range families() {
				for _, p := range c.probes {
					p.src, p.dst = family.Replace(p.src), family.Replace(p.dst)
					p.run(t, pod, world)
				}
			}
		})
	}
}

// families spell out the same probe for IPv4 and for IPv6.
func families() []*strings.Replacer {
	return []*strings.Replacer{
		strings.NewReplacer("OUT", kerneltest.Outside4, "POD", kerneltest.Pod4, "GW", kerneltest.World4, "LO", "127.0.0.1", "PASS", "127.0.0.6"),
		strings.NewReplacer("OUT", "["+kerneltest.Outside6+"]", "POD", "["+kerneltest.Pod6+"]", "GW", "["+kerneltest.World6+"]",
			"LO", "[::1]", "PASS", "::6"),
	}
}

// After removal traffic flows as if nothing had ever been there.
func TestTrafficAfterRemoval(t *testing.T) {
	pod, world := kerneltest.NewPod(t)
	b := newByPath(t)
	listenAll(t, pod, world)
	mustApply(t, b, pod, rules(t, nil))
	if _, err := b.Remove(t.Context(), pod.Path()); err != nil {
		t.Fatal(err)
	}
	for _, family := range families() {
		for _, p := range []probe{
			{owner: kerneltest.App, dst: "OUT:80", want: "WORLD:80"},
			{owner: kerneltest.App, dst: "OUT:7"},
			{world: true, owner: kerneltest.App, dst: "POD:8080", want: "APP:8080"},
		} {
			p.dst = family.Replace(p.dst)
			p.run(t, pod, world)
		}
	}
}
