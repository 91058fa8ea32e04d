package conformance

import (
	"testing"

	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

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

// excludeCases are those of excluded sources and users, and of ranges of ports.
func excludeCases() map[string]ownCase {
	users := []iptables.Users{{First: 1300, Last: 1400}, {First: 2000, Last: 2000}, {First: 3000, Last: 3999, Port: 443}, {First: 4000, Last: 4000, Port: 53}}
	onlyGroup := func(s *iptables.Spec) { s.ProxyUID = 0 }
	return map[string]ownCase{
		"excluded sources":             {families: "ds", spec: with(func(s *iptables.Spec) { monitoring(s); onlyGroup(s) }), later: ipv6Clients, lines: sourceLines()},
		"excluded sources with TPROXY": {families: "ds", spec: with(func(s *iptables.Spec) { monitoring(s); tproxy(s) }), later: ipv6Clients, lines: sourceLines()},
		"excluded sources beside a list of ports": {families: "4", spec: with(func(s *iptables.Spec) {
			monitoring(s)
			s.IncludeInboundPorts = iptables.Ports{List: []uint16{8080}}
		}), lines: []string{
			"world 0 tcp 10.244.1.5:8080 from 93.184.216.34 = APP:8080", "world 0 tcp 10.244.1.5:8080 from 10.8.0.1 = PROXY:15006",
			"world 0 tcp 10.244.1.5:9090 from 10.8.0.1 = APP:9090",
		}},
		"excluded users": {families: "ds", spec: with(func(s *iptables.Spec) { s.ExcludeUsers, s.DNS = users, iptables.DNSAll }), lines: []string{
			"pod 1300 tcp 93.184.216.34:80 = WORLD:7000", "pod 1400/1000 tcp [fd00:99::34]:80 = WORLD:7000", "pod 2000 tcp 93.184.216.34:80 = WORLD:7000",
			"pod 1299 tcp 93.184.216.34:80 = PROXY:15001", "pod 1401 tcp [fd00:99::34]:80 = PROXY:15001", "pod 2001 tcp 93.184.216.34:80 = PROXY:15001",
			"pod 3000 tcp 93.184.216.34:443 = WORLD:7000", "pod 3999 tcp [fd00:99::34]:443 = WORLD:7000", "pod 3000 tcp 93.184.216.34:80 = PROXY:15001",
			"pod 1300 udp 8.8.8.8:53 = WORLD:7000", "pod 1300 tcp 8.8.8.8:53 = WORLD:7000", "pod 3000 udp 8.8.8.8:53 = PROXY:15053",
			"pod 4000 udp [fd00:10:96::10]:53 = WORLD:7000", "pod 4000 tcp 8.8.8.8:53 = WORLD:7000", "pod 4000 tcp 93.184.216.34:80 = PROXY:15001",
			"pod 1000 udp 8.8.8.8:53 = PROXY:15053", "pod 1300 tcp 10.244.1.5:8080 = APP:8080",
			// The proxy is among the excluded users.
			"pod 1337 tcp 10.244.1.5:8080 = PROXY:15006", "pod 1337 tcp 93.184.216.34:80 = WORLD:7000",
		}},
		"every user is excluded, and the proxy is known by its group": {families: "4", spec: with(func(s *iptables.Spec) {
			tproxy(s)
			s.ExcludeUsers = []iptables.Users{{First: 0, Last: 4294967294}}
		}), lines: []string{
			"pod 0 tcp 93.184.216.34:80 = WORLD:7000", "pod 4294967294 tcp 93.184.216.34:80 = WORLD:7000", "pod 0/1337 tcp 10.244.1.5:8080 = PROXY:15006",
			"world 0 tcp 10.244.1.5:8080 = PROXY:15006",
		}},
		"ranges of excluded ports": {families: "ds", spec: with(func(s *iptables.Spec) {
			s.Ranges.ExcludeInbound = []iptables.PortRange{{First: 8000, Last: 8080}, {First: 9999, Last: 65535}}
			s.Ranges.ExcludeOutbound = []iptables.PortRange{{First: 0, Last: 80}, {First: 8000, Last: 8999}}
		}), lines: []string{
			"world 0 tcp 10.244.1.5:8080 = APP:8080", "world 0 tcp [fd00:10:244:1::5]:9999 = APP:9999", "world 0 tcp 10.244.1.5:9090 = PROXY:15006",
			"pod 1000 tcp 93.184.216.34:80 = WORLD:7000", "pod 1000 tcp [fd00:99::34]:8000 = WORLD:7000", "pod 1000 tcp 93.184.216.34:8999 = WORLD:7000",
			"pod 1000 tcp 93.184.216.34:81 = PROXY:15001", "pod 1000 tcp [fd00:99::34]:9000 = PROXY:15001", "pod 1000 tcp 93.184.216.34:15020 = WORLD:7000",
		}},
		"ranges of included ports":             {families: "ds", spec: with(rangesIncluded), lines: rangeLines()},
		"ranges of included ports with TPROXY": {families: "ds", spec: with(func(s *iptables.Spec) { rangesIncluded(s); tproxy(s) }), lines: rangeLines()},
		"ranges of ports that more than one rule of iptables has to name": {families: "4", spec: with(func(s *iptables.Spec) {
			tproxy(s)
			for i := range uint16(20) {
				s.Ranges.ExcludeInbound = append(s.Ranges.ExcludeInbound, iptables.PortRange{First: 8500 + 100*i, Last: 8590 + 100*i})
			}
		}), lines: []string{
			"world 0 tcp 10.244.1.5:9090 = APP:9090", "world 0 tcp 10.244.1.5:9999 = PROXY:15006", "world 0 tcp 10.244.1.5:8080 = PROXY:15006",
		}},
	}
}

func rangesIncluded(s *iptables.Spec) {
	s.IncludeInboundPorts = iptables.Ports{List: []uint16{22}}
	s.Ranges.IncludeInbound = []iptables.PortRange{{First: 8000, Last: 8999}}
	s.IncludeCIDRs = iptables.CIDRs{}
	s.Ranges.IncludeOutbound = []iptables.PortRange{{First: 80, Last: 90}}
}

func rangeLines() []string {
	return []string{
		"world 0 tcp 10.244.1.5:8080 = PROXY:15006", "world 0 tcp [fd00:10:244:1::5]:22 = PROXY:15006", "world 0 tcp 10.244.1.5:9090 = APP:9090",
		"world 0 tcp [fd00:10:244:1::5]:9999 = APP:9999", "pod 1000 tcp 93.184.216.34:90 = PROXY:15001", "pod 1000 tcp [fd00:99::34]:91 = WORLD:7000",
	}
}
