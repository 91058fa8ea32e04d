package nftables

import (
	"testing"

	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// A table of ours is never made anew when rules change, also where chains that others ask come or go with them.
func TestApply_chainsComeAndGo_tableStays(t *testing.T) {
	ns, b := kerneltest.New(t), newByPath(t)
	handle := func() string { return kerneltest.Shell(t, ns, "nft -j list tables", "") }
	mustApply(t, b, ns, rules(t, nil))
	before := handle()
	for _, change := range []func(*iptables.Spec){
		func(s *iptables.Spec) { s.DNS = iptables.DNSAll },
		func(s *iptables.Spec) { s.Mode, s.DNS = iptables.ModeTProxy, iptables.DNSAll },
		func(s *iptables.Spec) { s.Mode = iptables.ModeTProxy },
		func(s *iptables.Spec) { s.Mode, s.IncludeCIDRs = iptables.ModeTProxy, iptables.CIDRs{} },
		func(s *iptables.Spec) { s.Mode = iptables.ModeTProxy },
		func(s *iptables.Spec) { s.IncludeCIDRs, s.IncludeInboundPorts = iptables.CIDRs{}, iptables.Ports{} },
		nil,
	} {
		mustApply(t, b, ns, rules(t, change))
		if after := handle(); after != before || before == "" {
			t.Fatalf("was %q, is %q", before, after)
		}
	}
}
