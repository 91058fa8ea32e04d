// Package iptables holds redirection rules as data: a Spec says what traffic of one pod goes where, Rules turns it into a
// Ruleset, and renderings turn a Ruleset into text. It is pure: nothing here touches a kernel.
package iptables

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
)

// Mode is Istio's interception mode: how inbound traffic reaches the proxy.
type Mode string

// ModeRedirect rewrites the destination to the proxy's port; the application sees the proxy's address as its client.
const ModeRedirect Mode = "REDIRECT"

// Ports is a choice of TCP ports: all of them, or those of a list.
type Ports struct {
	All  bool     `json:"all,omitempty"`
	List []uint16 `json:"list,omitempty"`
}

// CIDRs is a choice of destinations of both families: all of them, or those of a list.
type CIDRs struct {
	All  bool           `json:"all,omitempty"`
	List []netip.Prefix `json:"list,omitempty"`
}

// Spec says what traffic of one pod goes where. Its zero value is not valid; Validate tells.
type Spec struct {
	Mode Mode `json:"mode"`
	// OutboundPort, InboundPort and TunnelPort are the proxy's listen ports. The tunnel port (HBONE) is never redirected.
	OutboundPort uint16 `json:"outboundPort"`
	InboundPort  uint16 `json:"inboundPort"`
	TunnelPort   uint16 `json:"tunnelPort"`
	// ProxyUID and ProxyGID own the proxy's sockets, as seen inside the pod. Either is enough to be the proxy.
	ProxyUID uint32 `json:"proxyUID"`
	ProxyGID uint32 `json:"proxyGID"`

	// IncludeCIDRs are the destinations whose TCP traffic goes to OutboundPort. ExcludeCIDRs wins over them.
	IncludeCIDRs CIDRs          `json:"includeCIDRs"`
	ExcludeCIDRs []netip.Prefix `json:"excludeCIDRs,omitempty"`
	// IncludeOutboundPorts go to OutboundPort whatever their address; ExcludeOutboundPorts win over everything.
	IncludeOutboundPorts []uint16 `json:"includeOutboundPorts,omitempty"`
	ExcludeOutboundPorts []uint16 `json:"excludeOutboundPorts,omitempty"`
	// IncludeInboundPorts go to InboundPort. ExcludeInboundPorts count only when all ports are included, as in Istio.
	IncludeInboundPorts Ports    `json:"includeInboundPorts"`
	ExcludeInboundPorts []uint16 `json:"excludeInboundPorts,omitempty"`
}

// Hash names the Spec in 16 hexadecimal digits; equal Specs have equal hashes.
func (s Spec) Hash() string {
	b, err := json.Marshal(s)
	if err != nil {
		// Every field type of Spec marshals; an error would be a broken build, and the text still tells Specs apart.
		b = fmt.Append(nil, s)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

// Validate names every fault of the Spec at once.
func (s Spec) Validate() error {
	var errs []error
	if s.Mode != ModeRedirect {
		errs = append(errs, fmt.Errorf("interception mode %q is not known: want %s", s.Mode, ModeRedirect))
	}
	for _, p := range []struct {
		name string
		port uint16
	}{{"outbound", s.OutboundPort}, {"inbound", s.InboundPort}, {"tunnel", s.TunnelPort}} {
		if p.port == 0 {
			errs = append(errs, fmt.Errorf("the proxy's %s port is 0", p.name))
		}
	}
	if s.OutboundPort == s.InboundPort && s.OutboundPort != 0 {
		errs = append(errs, fmt.Errorf("the proxy's outbound and inbound port are both %d", s.InboundPort))
	}
	if s.ProxyUID == 0 || s.ProxyGID == 0 {
		errs = append(errs, fmt.Errorf("the proxy's uid is %d and its gid %d: neither may be 0", s.ProxyUID, s.ProxyGID))
	}
	return errors.Join(errs...)
}
