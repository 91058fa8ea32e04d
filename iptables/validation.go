package iptables

import "net/netip"

// validationPort is one of the range that Istio keeps for itself, and of which it makes no use.
const validationPort = 15005

// IstioValidationPort is where Istio's init container istio-validation looks for the rules: as the proxy's user, over lo, at
// the address that the proxy hands inbound traffic from.
const IstioValidationPort = 15002

// Validation are the destinations, one of each family, that lead from the pod's loopback address to the proxy's inbound port
// whatever the Spec includes or excludes: a pod proves by a connection to each that its rules are there. The addresses are
// those that the proxy hands inbound traffic from, so they are the pod's own, or nobody's, and no connection to them leaves
// the pod.
//
// The proxy itself is refused there: handing such a connection on to its destination it would dial itself for ever.
func Validation() []netip.AddrPort {
	var out []netip.AddrPort
	for _, p := range passthrough() {
		out = append(out, netip.AddrPortFrom(p.Addr(), validationPort))
	}
	return out
}

// validationSources are the addresses that the proof comes from, in the order of Validation.
func validationSources() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32"), netip.MustParsePrefix("::1/128")}
}

func (b *builder) validation(r *rules) {
	for i, v := range Validation() {
		p := netip.PrefixFrom(v.Addr(), v.Addr().BitLen())
		for _, owner := range b.spec.owners() {
			r.add("the proxy may not prove the rules: it would dial itself for ever", to(refusedPort), oif("lo"), family(p), addr(DstAddr, p), tcp(), port(v.Port()), owner)
		}
		r.add("the pod proving that its rules are there", to(b.spec.InboundPort),
			oif("lo"), family(p), addr(SrcAddr, validationSources()[i]), addr(DstAddr, p), tcp(), port(v.Port()))
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
