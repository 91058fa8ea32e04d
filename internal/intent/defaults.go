package intent

import (
	"errors"

	"istio-pod-network-controller/iptables"
)

// Defaults are the values for pods without the annotation, in the annotation's syntax.
type Defaults struct {
	InterceptionMode        string
	IncludeOutboundIPRanges string
	ExcludeOutboundIPRanges string
	IncludeInboundPorts     string
	ExcludeInboundPorts     string
	IncludeOutboundPorts    string
	ExcludeOutboundPorts    string
	EnvoyPort               string
	EnvoyInboundPort        string
	EnvoyTunnelPort         string
	IPv6                    string
	InboundPorts            string
}

// StandardDefaults returns Istio's defaults.
func StandardDefaults() Defaults {
	return Defaults{
		InterceptionMode: string(iptables.ModeRedirect), IncludeOutboundIPRanges: "*", IncludeInboundPorts: "*",
		ExcludeInboundPorts: "15020", ExcludeOutboundPorts: "15020",
		IPv6: ipv6Capture, InboundPorts: inboundAll, EnvoyPort: "15001", EnvoyInboundPort: "15006", EnvoyTunnelPort: "15008",
	}
}

// Validate returns an error that names every invalid default by its flag.
func (d Defaults) Validate() error {
	var r reader
	if s := r.spec(d); len(r.errs) == 0 {
		return r.checkable(s)
	}
	return errors.Join(r.errs...)
}
