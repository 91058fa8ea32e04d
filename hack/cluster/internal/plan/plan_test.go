package plan

import (
	"net/netip"
	"testing"
)

func TestRangesDoNotOverlap(t *testing.T) {
	p := Default()
	ranges := map[string]Dual{
		"link": p.Node.Masked(), "pods": p.Pods, "services": p.Services, "world": p.World,
	}
	for a, ra := range ranges {
		for b, rb := range ranges {
			if a == b {
				continue
			}
			if ra.V4.Overlaps(rb.V4) || ra.V6.Overlaps(rb.V6) {
				t.Errorf("%s %s overlaps %s %s", a, ra, b, rb)
			}
		}
	}
}

func TestNodeGetsAPartOfThePodRange(t *testing.T) {
	p := Default()
	for i, n := range p.NodePods.Both() {
		if all := p.Pods.Both()[i]; !all.Contains(n.Addr()) || n.Bits() < all.Bits() {
			t.Errorf("node range %s is not within %s", n, all)
		}
	}
}

func TestDerivedAddresses(t *testing.T) {
	p := Default()
	tests := map[string]struct{ got, want string }{
		"API server URL":          {p.APIServer(), "https://172.30.0.1:6443"},
		"kubernetes service":      {p.FirstService().String(), "10.96.0.1"},
		"name server":             {p.DNS().String(), "10.96.0.10"},
		"node IPs for kubelet":    {p.Node.Addrs(), "172.30.0.11,fd00:172:30::11"},
		"service ranges for flag": {p.Services.String(), "10.96.0.0/16,fd00:10:96::/112"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if tt.got != tt.want {
				t.Errorf("got %s, want %s", tt.got, tt.want)
			}
		})
	}
	if !p.Services.V4.Contains(netip.MustParseAddr(p.DNS().String())) {
		t.Errorf("name server %s is outside %s", p.DNS(), p.Services.V4)
	}
}
