package main

import (
	"net/netip"

	"istio-pod-network-controller/iptables"
)

// fullSpec is a pod that asks for everything: TPROXY, DNS capture, 20 ports, 20 CIDRs of both families.
func fullSpec() iptables.Spec {
	s := excluding(20)
	s.Mode, s.DNS = iptables.ModeTProxy, iptables.DNSAll
	for i := range uint16(20) {
		s.ExcludeInboundPorts = append(s.ExcludeInboundPorts, 9000+i)
	}
	return s
}

// excluding returns a pod that excludes n CIDRs, alternately of IPv4 and IPv6. None overlaps another.
func excluding(n int) iptables.Spec {
	s := iptables.DefaultSpec()
	for i := range n {
		high, low := byte(i>>8), byte(i)
		a := netip.AddrFrom4([4]byte{10, high, low, 0})
		if i%2 == 1 {
			a = netip.AddrFrom16([16]byte{0xfd, 0, high, low})
		}
		s.ExcludeCIDRs = append(s.ExcludeCIDRs, netip.PrefixFrom(a, a.BitLen()*3/4))
	}
	return s
}
