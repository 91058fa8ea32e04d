package iptables

import "net/netip"

// validationPort is a port of the range that Istio reserves, which Istio does not use.
const validationPort = 15005

// IstioValidationPort is where Istio's init container istio-validation tests the rules: as the proxy's user, over lo, at the
// addresses of passthrough.
const IstioValidationPort = 15002

// Validation returns two destinations, one of each family. A connection to them from the pod's loopback address reaches the proxy's
// inbound port whatever the Spec includes or excludes: so a pod can prove that its rules are there. The addresses are
// passthrough's: they are the pod's own or nobody's, so no such connection leaves the pod.
//
// The proxy's own connections there are refused: it would hand them on to their destination, which is itself, for ever.
func Validation() []netip.AddrPort {
	var out []netip.AddrPort
	for _, p := range passthrough() {
		out = append(out, netip.AddrPortFrom(p.Addr(), validationPort))
	}
	return out
}

// validationSources returns the source addresses of the proof, in the order of Validation.
func validationSources() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32"), netip.MustParsePrefix("::1/128")}
}

func validation(s Spec, r *rules) {
	for i, v := range Validation() {
		p := netip.PrefixFrom(v.Addr(), v.Addr().BitLen())
		for _, owner := range s.owners() {
			r.add("the proxy may not prove the rules: it would dial itself for ever", redirectTo(refusedPort), outLo(), family(p), addr(DstAddr, p), tcp(), port(v.Port()), owner)
		}
		r.add("the pod proving that its rules are there", redirectTo(s.InboundPort),
			outLo(), family(p), addr(SrcAddr, validationSources()[i]), addr(DstAddr, p), tcp(), port(v.Port()))
	}
}

// istioValidation redirects Istio's validation if the loopback range would exempt it.
func istioValidation(s Spec, r *rules) {
	for _, p := range passthrough() {
		for _, owner := range s.owners() {
			if s.LoopbackCIDR.Contains(p.Addr()) {
				r.add("Istio's validation", redirectTo(s.InboundPort), outLo(), family(p), addr(DstAddr, p), tcp(), port(IstioValidationPort), owner)
			}
		}
	}
}
