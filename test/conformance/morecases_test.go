package conformance

import (
	"net/netip"
	"testing"

	"istio-pod-network-controller/iptables"
)

func directIPv6(s *iptables.Spec) { s.DirectIPv6 = true }

// moreCases are those of who is the proxy, of IPv6 that stays direct, and of the loopback range.
func moreCases() map[string]ownCase {
	return map[string]ownCase{
		"a proxy known by its user alone": {families: "ds", spec: with(func(s *iptables.Spec) { s.ProxyGID = 0 }), lines: []string{
			"pod 1337/1000 tcp 93.184.216.34:80 = WORLD:7000", "pod 1337/1000 tcp [fd00:99::34]:80 = WORLD:7000",
			"pod 1000/1337 tcp 93.184.216.34:80 = PROXY:15001", "pod 1000/1337 tcp [fd00:99::34]:80 = PROXY:15001",
		}},
		"a proxy known by its group alone": {families: "ds", spec: with(func(s *iptables.Spec) { s.ProxyUID = 0 }), lines: []string{
			"pod 0/1337 tcp 93.184.216.34:80 = WORLD:7000", "pod 0/1337 tcp [fd00:99::34]:80 = WORLD:7000",
			"pod 1337/1000 tcp 93.184.216.34:80 = PROXY:15001", "pod 0 tcp [fd00:99::34]:80 = PROXY:15001",
		}},
		"IPv6 stays direct": {families: "ds", spec: with(directIPv6), lines: []string{
			"world 0 tcp 10.244.1.5:8080 = PROXY:15006", "world 0 tcp [fd00:10:244:1::5]:8080 = APP:8080",
			"pod 1000 tcp 93.184.216.34:80 = PROXY:15001", "pod 1000 tcp [fd00:99::34]:80 = WORLD:7000",
		}},
		"IPv6 stays direct with TPROXY and DNS capture": {families: "ds", spec: with(func(s *iptables.Spec) {
			directIPv6(s)
			s.Mode, s.DNS = iptables.ModeTProxy, iptables.DNSAll
		}), lines: []string{
			"world 0 tcp 10.244.1.5:8080 = PROXY:15006", "world 0 tcp [fd00:10:244:1::5]:8080 = APP:8080",
			"pod 1000 udp 8.8.8.8:53 = PROXY:15053", "pod 1000 udp [fd00:10:96::10]:53 = WORLD:7000", "pod 1000 tcp [fd00:99::34]:80 = WORLD:7000",
		}},
		"TPROXY with more excluded ports than one rule of iptables can name": {families: "ds", spec: with(func(s *iptables.Spec) {
			tproxy(s)
			for p := range uint16(20) {
				s.ExcludeInboundPorts = append(s.ExcludeInboundPorts, 9980+p)
			}
		}), lines: []string{
			"world 0 tcp 10.244.1.5:9999 = APP:9999", "world 0 tcp [fd00:10:244:1::5]:9999 = APP:9999",
			"world 0 tcp 10.244.1.5:8080 = PROXY:15006", "world 0 tcp [fd00:10:244:1::5]:8080 = PROXY:15006",
		}},
		"TPROXY with a list of ports": {families: "ds", spec: with(func(s *iptables.Spec) {
			tproxy(s)
			s.IncludeInboundPorts = iptables.Ports{List: []uint16{8080}}
		}), lines: []string{
			"world 0 tcp 10.244.1.5:9999 = APP:9999", "world 0 tcp [fd00:10:244:1::5]:9999 = APP:9999",
			"world 0 tcp 10.244.1.5:8080 = PROXY:15006", "world 0 tcp [fd00:10:244:1::5]:8080 = PROXY:15006",
		}},
		"a wide loopback with TPROXY": {families: "ds", spec: with(func(s *iptables.Spec) {
			s.Mode, s.LoopbackCIDR = iptables.ModeTProxy, netip.MustParsePrefix("127.0.0.0/8")
		}), lines: []string{
			"pod 0/1337 tcp 127.0.0.6:15002 = PROXY:15006", "pod 1337 tcp 127.0.0.6:15002 = PROXY:15006",
		}},
		"a wide loopback": {families: "4", spec: with(func(s *iptables.Spec) { s.LoopbackCIDR = netip.MustParsePrefix("127.0.0.0/8") }), lines: []string{
			"pod 1337 tcp 127.0.0.2:8080 = APP:8080", "pod 1337 tcp 10.244.1.5:8080 = PROXY:15006", "pod 1337 tcp 127.0.0.6:15002 = PROXY:15006",
		}},
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
