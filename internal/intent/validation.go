package intent

import (
	"fmt"
	"slices"

	"istio-pod-network-controller/iptables"
)

// checkable returns an error for settings that keep Istio's validation from the inbound listener. The init container istio-validation
// connects as the proxy over lo to 127.0.0.6 port 15002; if that leads elsewhere, the pod never gets past it.
func (r *reader) checkable(s iptables.Spec) error {
	const port = iptables.IstioValidationPort
	if slices.Contains(s.ExcludeOutboundPorts, port) {
		return fmt.Errorf("%s: port %d is excluded, and istio-validation looks for the rules by it: take it out", r.source(keyExcludeOutbound, "exclude-outbound-ports"), port)
	}
	if slices.Contains(s.ExcludeInterfaces, "lo") {
		return fmt.Errorf("%s: lo is excluded, and istio-validation looks for the rules by it: take it out", keyExcludeInterfaces)
	}
	for _, p := range []struct {
		key, flag string
		port      uint16
	}{
		{KeyOutboundPort, "envoy-port", s.OutboundPort},
		{KeyInboundPort, "envoy-inbound-port", s.InboundPort},
		{KeyTunnelPort, "envoy-tunnel-port", s.TunnelPort},
	} {
		if p.port == port {
			return fmt.Errorf("%s: istio-validation looks for the rules by port %d: choose another one", r.source(p.key, p.flag), port)
		}
	}
	return nil
}

// source names where a value comes from: the pod's annotation, or the agent's flag.
func (r *reader) source(key, flag string) string {
	if _, own := r.annotations[key]; own && !r.flags {
		return key
	}
	return "--" + flag
}
