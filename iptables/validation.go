package iptables

import "net/netip"

// validationPort is one of the range that Istio keeps for itself, and of which it makes no use.
const validationPort = 15005

// IstioValidationPort is where Istio's init container istio-validation looks for the rules: as the proxy's user, over lo, at
// the address that the proxy hands inbound traffic from.
const IstioValidationPort = 15002

// Validation are the destinations, one of each family, that lead to the proxy's inbound port whoever dials them and whatever
// the Spec includes or excludes: a pod proves by a connection to each that its rules are there. The addresses are those that
// the proxy hands inbound traffic from, so they are the pod's own, or nobody's, and no connection to them leaves the pod.
func Validation() []netip.AddrPort {
	var out []netip.AddrPort
	for _, p := range passthrough() {
		out = append(out, netip.AddrPortFrom(p.Addr(), validationPort))
	}
	return out
}

func (b *builder) validation(r *rules) {
	for _, v := range Validation() {
		p := netip.PrefixFrom(v.Addr(), v.Addr().BitLen())
		r.add("the pod proving that its rules are there", to(b.spec.InboundPort), oif("lo"), family(p), addr(DstAddr, p), tcp(), port(v.Port()))
	}
}

// istioValidation redirects Istio's validation where the loopback range would leave it alone.
func (b *builder) istioValidation(r *rules) {
	for _, p := range passthrough() {
		for _, owner := range b.spec.owners() {
			if b.spec.LoopbackCIDR.Contains(p.Addr()) {
				r.add("Istio's validation", to(b.spec.InboundPort), oif("lo"), family(p), addr(DstAddr, p), tcp(), port(IstioValidationPort), owner)
			}
		}
	}
}
