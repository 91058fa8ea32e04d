package intent

import (
	"fmt"
	"slices"

	"istio-pod-network-controller/iptables"
)

// checkable refuses what keeps Istio's validation from the inbound listener: it connects as the proxy over lo to 127.0.0.6
// port 15002, and a pod in which that leads elsewhere would never get past its init container istio-validation.
func checkable(s iptables.Spec) error {
	const port = iptables.IstioValidationPort
	switch {
	case slices.Contains(s.ExcludeOutboundPorts, port):
		return fmt.Errorf("%s: port %d is excluded, over which istio-validation looks for the rules", keyExcludeOutbound, port)
	case slices.Contains(s.ExcludeInterfaces, "lo"):
		return fmt.Errorf("%s: lo is excluded, over which istio-validation looks for the rules", keyExcludeInterfaces)
	case slices.Contains([]uint16{s.OutboundPort, s.InboundPort, s.TunnelPort}, port):
		return fmt.Errorf("one of the proxy's ports is %d, over which istio-validation looks for the rules", port)
	}
	return nil
}
