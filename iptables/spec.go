// Package iptables holds redirection rules as data: a Spec says what traffic of one pod goes where, Rules turns it into a
// Ruleset, and renderings turn a Ruleset into text. It is pure: nothing here touches a kernel.
//
//	listing.go       what a backend shows of its rules
//	summary.go       a Spec in words
//	words.go         rules in words, for inspect
//	restoretext.go   rendering for iptables-restore
//	restorematch.go  a rule's conditions in it
//	nfttext.go       rendering for nft
//	rules.go         Rules: Spec -> Ruleset
//	tproxy.go        chains that divert
//	zones.go         chains of conntrack zones, for DNS
//	inbound.go       chain of inbound connections
//	outbound.go      chain of outbound connections
//	validation.go    connections that prove the rules
//	hash.go          a Ruleset's hash
//	sets.go          its sets
//	reused.go        connections that conntrack has lost
//	hold.go          connections that are earlier than their proxy
//	spec.go          a Spec, and whether it is valid
//	directipv6.go    rules without IPv6
//	chains.go        names, priorities, and how a chain is written
//	drift.go         differences between what is and what should be
//	conds.go         conditions and actions
//	ruleset.go       a Ruleset as data
//	ports.go         ports and ranges
//	numbers.go       zones, marks and ports with a meaning
package iptables

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Mode is Istio's interception mode: how inbound traffic reaches the proxy.
type Mode string

// The interception modes.
const (
	// ModeRedirect rewrites the destination to the proxy's port; the application sees the proxy's address as its client.
	ModeRedirect Mode = "REDIRECT"
	// ModeTProxy hands inbound connections to the proxy unchanged, so that the client's address can be kept.
	ModeTProxy Mode = "TPROXY"
)

// DNSMode says which DNS lookups go to the proxy's resolver.
type DNSMode string

// The DNS modes: none, all of port 53, or only those to the resolvers in the pod's resolv.conf.
const (
	DNSOff        DNSMode = ""
	DNSAll        DNSMode = "all"
	DNSResolvConf DNSMode = "resolv.conf"
)

// Ports is a choice of TCP ports: all of them, or those of a list. Listening narrows it to ports on which a socket of the pod listens at
// the address that is dialled, when the connection is opened.
type Ports struct {
	All       bool     `json:"all,omitempty"`
	List      []uint16 `json:"list,omitempty"`
	Listening bool     `json:"listening,omitempty"`
}

// CIDRs is a choice of destinations of both families: all of them, or those of a list.
type CIDRs struct {
	All  bool           `json:"all,omitempty"`
	List []netip.Prefix `json:"list,omitempty"`
}

// Groups is a choice of groups whose outbound traffic is redirected: all except some, or only those of a list.
type Groups struct {
	All     bool     `json:"all,omitempty"`
	List    []uint32 `json:"list,omitempty"`
	Exclude []uint32 `json:"exclude,omitempty"`
}

// Users are the users from First to Last, both included. With a Port, only what they send there counts.
type Users struct {
	First uint32 `json:"first"`
	Last  uint32 `json:"last"`
	Port  uint16 `json:"port,omitempty"`
}

func (u Users) cond() Cond {
	c := num(OwnerUID, u.First)
	if u.Last != u.First {
		c.Last = u.Last
	}
	return c
}

// Spec says what traffic of one pod goes where. Its zero value is not valid; see Validate.
type Spec struct {
	Mode Mode `json:"mode"`
	// OutboundPort, InboundPort and TunnelPort are the proxy's listen ports. The tunnel port (HBONE) is not redirected,
	// except by TPROXY, as in Istio.
	OutboundPort uint16 `json:"outboundPort"`
	InboundPort  uint16 `json:"inboundPort"`
	TunnelPort   uint16 `json:"tunnelPort"`
	// ProxyUID and ProxyGID own the proxy's sockets, as seen inside the pod. A packet of either is the proxy's. 0 means that the id is
	// not known, or that the application has it too.
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
	// Ranges add to the lists of ports above.
	Ranges Ranges `json:"ranges,omitzero"`
	// Aliases are ports of the pod that lead others to another port of its proxy. TPROXY must not capture them.
	Aliases []PortAlias `json:"aliases,omitempty"`
	// ExcludeSources are clients whose connections to the pod are left alone, whatever the port.
	ExcludeSources []netip.Prefix `json:"excludeSources,omitempty"`

	// OwnerGroups are the groups whose outbound traffic is redirected.
	OwnerGroups Groups `json:"ownerGroups"`
	// ExcludeUsers are left alone, unless they are the proxy.
	ExcludeUsers []Users `json:"excludeUsers,omitempty"`
	// LoopbackCIDR are the IPv4 addresses that count as the pod's own loopback; for IPv6 it is always ::1.
	LoopbackCIDR netip.Prefix `json:"loopbackCIDR"`
	// ExcludeInterfaces are left alone. What comes in on RerouteInterfaces, from virtual machines behind the pod, is treated as outbound
	// traffic.
	ExcludeInterfaces []string `json:"excludeInterfaces,omitempty"`
	RerouteInterfaces []string `json:"rerouteInterfaces,omitempty"`
	// DNS says which lookups go to the proxy's resolver; Resolvers are used with DNSResolvConf.
	DNS       DNSMode      `json:"dns,omitempty"`
	Resolvers []netip.Addr `json:"resolvers,omitempty"`
	// RerouteDNS sends lookups from RerouteInterfaces to the proxy's resolver, which has to listen at the interface's address.
	RerouteDNS bool `json:"rerouteDNS,omitempty"`
	// DropInvalid drops inbound TCP packets that connection tracking finds invalid.
	DropInvalid bool `json:"dropInvalid,omitempty"`
	// DirectIPv6 leaves all IPv6 traffic alone.
	DirectIPv6 bool `json:"directIPv6,omitempty"`
}

// DefaultSpec returns Istio's defaults, for a pod without settings of its own.
func DefaultSpec() Spec {
	return Spec{
		Mode: ModeRedirect, OutboundPort: 15001, InboundPort: 15006, TunnelPort: 15008, ProxyUID: 1337, ProxyGID: 1337,
		IncludeCIDRs: CIDRs{All: true}, IncludeInboundPorts: Ports{All: true},
		ExcludeInboundPorts: []uint16{15020, 15021, 15090}, ExcludeOutboundPorts: []uint16{15020},
		OwnerGroups: Groups{All: true}, LoopbackCIDR: netip.MustParsePrefix("127.0.0.1/32"),
	}
}

// Hash returns 16 hexadecimal digits; equal Specs have equal hashes.
func (s Spec) Hash() string {
	b, _ := json.Marshal(s) // all types of its fields can be marshalled
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

// Validate returns an error that names every fault in how the parts of the Spec fit together. That ports, groups and ranges are possible is
// checked where they are read: package intent, and the CRDs.
func (s Spec) Validate() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if s.Mode != ModeRedirect && s.Mode != ModeTProxy {
		fault("interception mode %q is not known: want REDIRECT or TPROXY", s.Mode)
	}
	if s.OutboundPort == s.InboundPort {
		fault("the proxy's outbound and inbound port are both %d: give it two", s.InboundPort)
	}
	if s.ProxyUID == 0 && s.ProxyGID == 0 {
		fault("the proxy's uid is 0 and its gid is 0: at least one must tell it from the application")
	}
	if why := WrongLoopback(s.LoopbackCIDR); why != "" {
		fault("%s %s", s.LoopbackCIDR, why)
	}
	switch {
	case s.DNS != DNSOff && s.DNS != DNSAll && s.DNS != DNSResolvConf:
		fault("DNS capture %q is not known: want all or resolv.conf", s.DNS)
	case s.DNS == DNSResolvConf && len(s.Resolvers) == 0:
		// Rules without any resolver would capture nothing, or everything; neither is what was asked for.
		fault("DNS capture of resolv.conf wants the pod's resolvers, and none are known: name them by the agent's --cluster-dns, or in the pod's dnsConfig, with dnsPolicy None")
	}
	return errors.Join(errs...)
}

// WrongLoopback returns what is wrong with a loopback range, or "". A redirect of what the pod sends to itself comes from 127.0.0.1, and must
// count as loopback.
func WrongLoopback(p netip.Prefix) string {
	switch {
	case !p.IsValid() || !p.Addr().Is4() || !p.Addr().IsLoopback() || p.Bits() < 8:
		return "are no IPv4 loopback addresses"
	case !p.Contains(netip.AddrFrom4([4]byte{127, 0, 0, 1})):
		return "do not hold 127.0.0.1"
	}
	return ""
}

// loopbacks returns the addresses that only the pod itself can reach, one range for each family.
func (s Spec) loopbacks() []netip.Prefix {
	return []netip.Prefix{s.LoopbackCIDR.Masked(), netip.MustParsePrefix("::1/128")}
}

// owners returns the conditions by which the proxy's packets are recognised: its user, its group, or either.
func (s Spec) owners() (out []Cond) {
	if s.ProxyUID != 0 {
		out = append(out, num(OwnerUID, s.ProxyUID))
	}
	if s.ProxyGID != 0 {
		out = append(out, num(OwnerGID, s.ProxyGID))
	}
	return out
}

// capturesInbound reports whether any inbound traffic goes to the proxy.
func (s Spec) capturesInbound() bool {
	return s.IncludeInboundPorts.All || len(s.IncludeInboundPorts.List)+len(s.Ranges.IncludeInbound) > 0
}

// capturesOutbound reports whether any outbound TCP traffic goes to the proxy.
func (s Spec) capturesOutbound() bool {
	return s.IncludeCIDRs.All || len(s.IncludeCIDRs.List)+len(s.IncludeOutboundPorts)+len(s.Ranges.IncludeOutbound)+len(s.RerouteInterfaces) > 0
}

// ProxyPorts returns the proxy's ports to which TCP connections are led.
func (s Spec) ProxyPorts() (out []uint16) {
	if s.capturesOutbound() {
		out = append(out, s.OutboundPort)
	}
	if s.capturesInbound() {
		out = append(out, s.InboundPort)
	}
	return out
}

// divertsInbound reports whether inbound traffic reaches the proxy with its addresses unchanged (TPROXY).
func (s Spec) divertsInbound() bool { return s.Mode == ModeTProxy && s.capturesInbound() }

// listening returns the conditions that narrow the captured ports to those on which somebody listens.
func (s Spec) listening() []Cond {
	if s.IncludeInboundPorts.Listening {
		return []Cond{num(DstType, Local), num(Socket, AnySocket)} // the kernel finds a socket for a forwarded packet, too
	}
	return nil
}

func (s Spec) ownPorts() []uint16 { return []uint16{s.OutboundPort, s.InboundPort, s.TunnelPort} }

// CapturesListener reports whether connections to a port of the pod go to the proxy while somebody listens there, if only such ports are
// captured.
func (s Spec) CapturesListener(port uint16) bool {
	included := containsPort(s.IncludeInboundPorts.List, s.Ranges.IncludeInbound, port)
	if s.IncludeInboundPorts.All {
		included = !containsPort(s.ExcludeInboundPorts, s.Ranges.ExcludeInbound, port)
	}
	return s.IncludeInboundPorts.Listening && included && !slices.Contains(s.ownPorts(), port)
}

// resolvers returns the pod's resolvers as prefixes of one address.
func (s Spec) resolvers() []netip.Prefix {
	var out []netip.Prefix
	for _, a := range s.Resolvers {
		out = append(out, netip.PrefixFrom(a, a.BitLen()))
	}
	return out
}
