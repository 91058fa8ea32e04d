package conformance

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/nftables"
	"istio-pod-network-controller/iptables/routing"
	"istio-pod-network-controller/test/kerneltest"
)

// What a process of the pod with NET_ADMIN can do beside our rules, which all stay in place.

// swapNames gives the name lo to the interface that leads to the world.
const swapNames = `ip link set lo down; ip link set lo name x0; ip link set x0 up
ip link set eth0 down; ip link set eth0 name lo; ip link set lo up
ip addr replace fd00:10:244:1::5/64 dev lo nodad
ip route add default via 10.244.1.1; ip -6 route add default via fd00:10:244:1::1
for i in $(seq 100); do ip -6 route get fd00:99::34 && ip -br link show lo | grep -q UP && exit; sleep 0.02; done; exit 1`

// The rules of the nftables backend know the loopback interface by its index.
func TestNftables_loopbackRenamed_capturesAsBefore(t *testing.T) {
	t.Parallel()
	for _, mode := range []iptables.Mode{iptables.ModeRedirect, iptables.ModeTProxy} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			b, w := kerneltest.NewByPath(t, nftables.New(), routing.Remove), newWorld(t, "ds")
			setup := configuration{spec: with(func(s *iptables.Spec) { s.Mode = mode })}
			w.listen(t, setup)
			mustApply(t, b, w, setup)
			kerneltest.Shell(t, w.pod(), swapNames, "")
			mustApply(t, b, w, setup) // the addresses and routes of an interface that goes down are gone
			probes, want := parseLines(t, []string{
				"pod 1000 tcp 93.184.216.34:80 = PROXY:15001", "pod 1000 tcp [fd00:99::34]:80 = PROXY:15001",
				"pod 1000 tcp 10.244.1.5:8080 = APP:8080", "pod 1000 tcp [fd00:10:244:1::5]:8080 = APP:8080",
				"pod 1337 tcp 10.244.1.5:8080 = PROXY:15006", "pod 1337 tcp 93.184.216.34:80 = WORLD:7000",
				"world 0 tcp 10.244.1.5:8080 = PROXY:15006", "world 0 tcp [fd00:10:244:1::5]:8080 = PROXY:15006",
			})
			w.compare(t, probes, want)
		})
	}
}

// Rules of somebody else see packets before ours, and give them the mark of diverted packets, or keep conntrack from them. Nothing gets
// past the proxy: it is redirected or dropped.
func TestRules_foreignChainBefore_nothingPasses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ rules, outbound, inbound string }{
		"our mark at ingress": {
			"table netdev x { chain c { type filter hook ingress device eth0 priority 0; meta mark set 1337; }; }", "PROXY:15001", "PROXY:15006",
		},
		"NOTRACK": {
			"table inet x { chain o { type filter hook output priority -300; tcp dport 80 notrack; }\nchain p { type filter hook prerouting priority -300; tcp dport 8080 notrack; }\n}",
			"NOBODY", "",
		},
	} {
		for _, b := range backends(t) {
			for _, mode := range []iptables.Mode{iptables.ModeRedirect, iptables.ModeTProxy} {
				t.Run(fmt.Sprintf("%s/%s/%s", name, b.Name(), mode), func(t *testing.T) {
					t.Parallel()
					w := newWorld(t, "ds")
					setup := configuration{spec: with(func(s *iptables.Spec) { s.Mode = mode })}
					w.listen(t, setup)
					mustApply(t, b, w, setup)
					kerneltest.Shell(t, w.pod(), "nft -f -", c.rules)
					inbound := c.inbound
					if inbound == "" { // TPROXY needs no conntrack
						inbound = map[iptables.Mode]string{iptables.ModeRedirect: "NOBODY", iptables.ModeTProxy: "PROXY:15006"}[mode]
					}
					probes, want := parseLines(t, []string{
						"pod 1000 tcp 93.184.216.34:80 = " + c.outbound, "pod 1000 tcp [fd00:99::34]:80 = " + c.outbound,
						"world 0 tcp 10.244.1.5:8080 = " + inbound, "world 0 tcp [fd00:10:244:1::5]:8080 = " + inbound,
					})
					w.compare(t, probes, want)
				})
			}
		}
	}
}

// Conntrack may hold a connection whose destination somebody else's rules have changed. A new one from the same port is not taken for
// one that ours have redirected.
func TestRules_foreignDestinationInConntrack_nothingPasses(t *testing.T) {
	t.Parallel()
	for _, b := range backends(t) {
		for _, mode := range []iptables.Mode{iptables.ModeRedirect, iptables.ModeTProxy} {
			t.Run(fmt.Sprintf("%s/%s", b.Name(), mode), func(t *testing.T) {
				t.Parallel()
				pod, world := kerneltest.NewPod(t)
				talks := translatedTalks(t, pod, world)
				if _, err := b.Apply(t.Context(), pod.Path(), configuration{spec: with(func(s *iptables.Spec) { s.Mode = mode })}.rules(t)); err != nil {
					t.Fatal(err)
				}
				kerneltest.Shell(t, pod, "nft delete table inet x", "")
				listenAsProxy(t, pod)
				var wg sync.WaitGroup
				for _, o := range talks {
					from, to := o.ends(pod, world)
					o.vanish(t)
					kerneltest.Listen(t, to, kerneltest.App, "DIRECT", uint16(o.server.LocalAddr().(*net.TCPAddr).Port))
					wg.Go(func() {
						if o.reopen(t, from) {
							t.Errorf("%s: a new connection from the same port passed the proxy by", o.name)
						}
					})
				}
				wg.Wait()
			})
		}
	}
}

// translatedTalks are connections in both directions and both families, whose destination port rules of somebody else have changed.
func translatedTalks(t *testing.T, pod, world *netns.NS) (out []talk) {
	t.Helper()
	const shift = 1000
	port := 8100
	for _, c := range []struct {
		hook, host string
		from, to   *netns.NS
	}{
		{"prerouting", kerneltest.Pod4, world, pod},
		{"prerouting", kerneltest.Pod6, world, pod},
		{"output", kerneltest.Outside4, pod, world},
		{"output", kerneltest.Outside6, pod, world},
	} {
		port++
		family := "ip"
		if netip.MustParseAddr(c.host).Is6() {
			family = "ip6"
		}
		rules := fmt.Sprintf("table inet x { chain c%d { type nat hook %s priority -110; tcp dport %d dnat %s to %s; }; }",
			port, c.hook, port, family, net.JoinHostPort(c.host, fmt.Sprint(port+shift)))
		kerneltest.Shell(t, pod, "nft -f -", rules)
		name := strings.Join([]string{map[string]string{"prerouting": "inbound", "output": "outbound"}[c.hook], c.host}, " ")
		out = append(out, openTalk(t, name, c.from, c.to, net.JoinHostPort(c.host, fmt.Sprint(port)), net.JoinHostPort(c.host, fmt.Sprint(port+shift)), false))
	}
	return out
}
