package istio

import "cmp"

// Listeners returns the ports of Envoy's to which a pod's traffic has to be redirected (pkg/config/mesh/mesh.go has the defaults).
func (m *Mesh) Listeners() (outbound, inbound int64) {
	outbound, _ = m.config.ProxyListenPort.Int64() // 0: none is set
	inbound, _ = m.config.ProxyInboundListenPort.Int64()
	return cmp.Or(outbound, 15001), cmp.Or(inbound, 15006)
}
