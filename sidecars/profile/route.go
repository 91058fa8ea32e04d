package profile

import (
	"slices"

	"istio-pod-network-controller/internal/intent"
)

// ManagedProxy returns what the rules need to know of a proxy of this version. The schema has checked the numbers.
func (p *Version) ManagedProxy() intent.ManagedProxy {
	network := p.Spec.Network
	out := intent.ManagedProxy{
		Profile: p.Name, Owner: intent.Owner{UID: uint32(p.UID())}, Transparent: p.Spec.Transparent, InboundPorts: network.InboundPorts,
		OutboundPort: uint16(network.OutboundPort), InboundPort: uint16(network.InboundPort),
	}
	if out.UID == 0 { // so may the application's be
		out.GID = uint32(p.Spec.RunAsGroup)
	}
	excluded := network.ExcludeInboundPorts
	if p.Spec.Istio != nil { // as Istio's injector does
		excluded = append(slices.Clip(excluded), 15020, 15021, 15090)
	}
	for _, port := range excluded {
		out.ExcludeInboundPorts = append(out.ExcludeInboundPorts, uint16(port))
	}
	return out
}
