package intent

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/iptables"
)

// Istio's annotations.
const (
	keyMode            = "sidecar.istio.io/interceptionMode"
	keyIncludeCIDRs    = "traffic.sidecar.istio.io/includeOutboundIPRanges"
	keyExcludeCIDRs    = "traffic.sidecar.istio.io/excludeOutboundIPRanges"
	keyIncludeInbound  = "traffic.sidecar.istio.io/includeInboundPorts"
	keyExcludeInbound  = "traffic.sidecar.istio.io/excludeInboundPorts"
	keyIncludeOutbound = "traffic.sidecar.istio.io/includeOutboundPorts"
	keyExcludeOutbound = "traffic.sidecar.istio.io/excludeOutboundPorts"

	keyExcludeInterfaces = "traffic.sidecar.istio.io/excludeInterfaces"
	keyReroute           = "istio.io/reroute-virtual-interfaces"
	keyKubevirt          = "traffic.sidecar.istio.io/kubevirtInterfaces" // deprecated
)

// loopbackCIDR is Istio's default for the pod's own loopback addresses: one address, not 127.0.0.0/8.
const loopbackCIDR = "127.0.0.1/32"

// alwaysExcluded are the ports on which kubelet and Prometheus reach the proxy: agent status, readiness, metrics.
func alwaysExcluded() []uint16 { return []uint16{15020, 15021, 15090} }

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
	r := reader{flags: true}
	if s := r.spec(d); len(r.errs) == 0 {
		return r.checkable(s)
	}
	return errors.Join(r.errs...)
}

// specOf reads all settings of a pod's traffic. managed is the proxy that the agent runs for it, or nil.
func (r *reader) specOf(pod *corev1.Pod, c Config, managed *ManagedProxy) (iptables.Spec, error) {
	s := r.spec(c.Defaults)
	var note string
	var err error
	if managed != nil {
		managed.describe(&s)
	} else if s.ProxyUID, s.ProxyGID, note, err = proxyOwner(pod); err != nil {
		r.errs = append(r.errs, err)
	}
	if note != "" {
		r.note("%s", note)
	}
	if managed == nil {
		r.from.owner(pod)
	}
	r.interfaces(&s)
	r.proxyEnv(pod, &s)
	r.dnsCapture(pod, c, &s)
	if len(r.errs) == 0 {
		check := s
		if check.DNS == iptables.DNSResolvConf {
			check.Resolvers = []netip.Addr{netip.IPv6Unspecified()} // the runtime may know them
		}
		if err := errors.Join(check.Validate(), r.checkable(check)); err != nil {
			r.errs = append(r.errs, fmt.Errorf("what the pod asks for does not fit together: %w", err))
		}
	}
	return s, errors.Join(r.errs...)
}

// reader reads settings and collects errors and notes.
type reader struct {
	annotations map[string]string
	namespace   map[string]string // annotations of the namespace
	profile     *ManagedProxy     // the proxy that the agent runs for the pod, or nil
	profileName string
	asIstio     bool // ignore what Istio's CNI plugin ignores, and add a note
	flags       bool // name flags instead of annotations in messages
	from        sources
	errs        []error
	notes       []string
}

// note adds a sentence about a setting, up to maxNotes.
func (r *reader) note(format string, args ...any) {
	if len(r.notes) < maxNotes {
		r.notes = append(r.notes, fmt.Sprintf(format, args...))
	}
}

// maxNotes bounds the notes for one pod.
const maxNotes = 3

// value returns the annotation's value, or the default if it is absent.
func (r *reader) value(key, standard string) string {
	if v, ok := r.annotations[key]; ok {
		return v
	}
	return standard
}

func (r *reader) spec(d Defaults) iptables.Spec {
	excludeIn := read(r, keyExcludeInbound, "exclude-inbound-ports", d.ExcludeInboundPorts, portList)
	return iptables.Spec{
		Mode:                 read(r, keyMode, "interception-mode", d.InterceptionMode, mode),
		OutboundPort:         read(r, KeyOutboundPort, "envoy-port", d.EnvoyPort, onePort),
		InboundPort:          read(r, KeyInboundPort, "envoy-inbound-port", d.EnvoyInboundPort, onePort),
		TunnelPort:           read(r, KeyTunnelPort, "envoy-tunnel-port", d.EnvoyTunnelPort, onePort),
		IncludeCIDRs:         read(r, keyIncludeCIDRs, "include-outbound-ip-ranges", d.IncludeOutboundIPRanges, r.cidrs),
		ExcludeCIDRs:         read(r, keyExcludeCIDRs, "exclude-outbound-ip-ranges", d.ExcludeOutboundIPRanges, r.cidrList),
		IncludeInboundPorts:  r.inboundPorts(d),
		ExcludeInboundPorts:  append(excludeIn, alwaysExcluded()...),
		IncludeOutboundPorts: read(r, keyIncludeOutbound, "include-outbound-ports", d.IncludeOutboundPorts, portList),
		ExcludeOutboundPorts: read(r, keyExcludeOutbound, "exclude-outbound-ports", d.ExcludeOutboundPorts, portList),
		DirectIPv6:           read(r, KeyIPv6, "ipv6", cmp.Or(d.IPv6, ipv6Capture), directIPv6),
		OwnerGroups:          iptables.Groups{All: true},
		LoopbackCIDR:         netip.MustParsePrefix(loopbackCIDR),
	}
}

// read parses the annotation, or the default of the flag if it is absent. The flag's name is also the setting's; settings without a flag
// have a name of the same form. An empty annotation counts as present.
func read[T any](r *reader, key, flag, standard string, parse func(key, value string) (T, error)) T {
	r.from.value(key, flag, r.annotations, standard)
	out, err := parse(r.source(key, flag), r.value(key, standard))
	if err != nil {
		r.errs = append(r.errs, err)
	}
	return out
}

// modeNone is the interception mode without redirection. It never gets into a Spec.
const modeNone = "NONE"

func mode(key, value string) (iptables.Mode, error) {
	switch m := iptables.Mode(value); m {
	case iptables.ModeRedirect, iptables.ModeTProxy, modeNone:
		return m, nil
	}
	return "", &ValueError{Key: key, Value: value, Want: "REDIRECT, TPROXY or NONE"}
}

// The values of KeyIPv6. Istio's proxies listen on IPv6 only in dual-stack mode. Without listeners, captured IPv6 connections are
// refused; direct ones bypass the mesh.
const (
	ipv6Capture = "capture"
	ipv6Direct  = "direct"
)

func directIPv6(key, value string) (bool, error) {
	return isSecond(key, value, ipv6Capture, ipv6Direct)
}

// isSecond reports whether a value that must be one of two is the second.
func isSecond(key, value, first, second string) (bool, error) {
	switch value {
	case first, second:
		return value == second, nil
	}
	return false, &ValueError{Key: key, Value: value, Want: first + " or " + second}
}

// interfaces reads the lists of interface names. Of two keys for the same list the newer one counts if present, even if empty.
func (r *reader) interfaces(s *iptables.Spec) {
	reroute := keyReroute
	if _, ok := r.annotations[keyReroute]; !ok {
		reroute = keyKubevirt
	}
	s.ExcludeInterfaces = read(r, keyExcludeInterfaces, settingExcludeInterfaces, "", interfaceList)
	s.RerouteInterfaces = read(r, reroute, settingReroute, "", interfaceList)
}
