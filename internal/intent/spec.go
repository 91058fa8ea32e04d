package intent

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

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

// specOf reads all settings of a pod's traffic. managed is the proxy that the agent runs for it, or nil.
func (r *reader) specOf(pod *corev1.Pod, c Config, managed *ManagedProxy) (iptables.Spec, error) {
	s := r.spec()
	if managed != nil {
		managed.describe(&s)
	} else {
		r.owner(pod, &s)
	}
	r.note("%s", crewOf(pod).debugger(pod, s.ProxyUID, s.ProxyGID))
	r.ownKeys(&s)
	r.holds = r.hold()
	r.interfaces(&s)
	r.proxyEnv(pod, &s)
	if managed != nil {
		managed.exempt(&s)
	}
	r.dnsCapture(pod, c, &s)
	r.rerouteDNS(pod, &s)
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

// reader reads settings and collects errors and notes. Without annotations it reads the flags.
type reader struct {
	annotations   map[string]string
	namespace     map[string]string // annotations of the namespace, the defaults of its pods
	namespaceName string
	defaults      Defaults
	profile       *ManagedProxy // the proxy that the agent runs for the pod, or nil
	profileName   string
	holds         time.Duration // how long new connections wait for the proxy, which is no part of the Spec
	asIstio       bool          // ignore what Istio's CNI plugin ignores, and add a note
	from          sources
	errs          []error
	notes         []string
}

func readerOf(pod *corev1.Pod, ns *corev1.Namespace, defaults Defaults, from sources) reader {
	return reader{annotations: pod.Annotations, namespace: annotationsOf(ns), namespaceName: pod.Namespace, defaults: defaults, from: from}
}

// owner reads by which ids the rules know the proxy of a pod that brings its own, and names the containers that are redirected otherwise than
// their author may expect.
func (r *reader) owner(pod *corev1.Pod, s *iptables.Spec) {
	r.from.owner(pod)
	var note string
	var err error
	if s.ProxyUID, s.ProxyGID, note, err = proxyOwner(pod); err != nil {
		r.errs = append(r.errs, err)
		return
	}
	r.note("%s", note)
	r.note("%s", crewOf(pod).asProxy(s.ProxyUID, s.ProxyGID))
	r.note("%s", beforeProxy(pod, *s))
}

// note adds a sentence about a setting, up to maxNotes. An empty one is none.
func (r *reader) note(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); text != "" && len(r.notes) < maxNotes {
		r.notes = append(r.notes, text)
	}
}

// maxNotes bounds the notes for one pod.
const maxNotes = 5

// found is the value of a setting. Messages call it by name. origin and key are where Explain says that it comes from.
type found struct{ value, name, origin, key string }

// annotation returns an annotation of the pod, or else of its namespace. An empty annotation counts as present.
func (r *reader) annotation(key string) (out found, ok bool) {
	if v, own := r.annotations[key]; own {
		return found{value: v, name: key, origin: fromPod, key: key}, true
	}
	if v, set := r.namespace[key]; set {
		return found{value: v, name: "annotation " + key + " of namespace " + r.namespaceName, origin: fromNamespace, key: key}, true
	}
	return found{}, false
}

// lookup returns an annotation of the pod or of its namespace, or else the flag's value. The flag's name is also the setting's; settings without
// a flag have a name of the same form.
func (r *reader) lookup(key, flag string) found {
	if out, ok := r.annotation(key); ok {
		return out
	}
	out := found{value: r.defaults[flag], name: "--" + flag}
	out.origin, out.key = r.from.ofFlag(flag, out.value)
	return out
}

// ofProfile is lookup, but what the profile of the pod's proxy says counts before the flag. It is "" if the profile says nothing.
func (r *reader) ofProfile(key, flag string, says func(*ManagedProxy) string) found {
	if _, own := r.annotation(key); !own && r.profile != nil && says(r.profile) != "" {
		return found{value: says(r.profile), name: fromProfile + r.profileName, origin: fromProfile, key: r.profileName}
	}
	return r.lookup(key, flag)
}

func (r *reader) spec() iptables.Spec {
	excludeIn := read(r, keyExcludeInbound, settingExcludeInbound, portList)
	var ignored func(format string, args ...any)
	if r.asIstio {
		ignored = r.note
	}
	includedCIDRs := func(key, value string) (iptables.CIDRs, error) { return cidrs(key, value, ignored) }
	excludedCIDRs := func(key, value string) ([]netip.Prefix, error) { return cidrList(key, value, ignored) }
	return iptables.Spec{
		Mode:                 read(r, keyMode, settingMode, mode),
		OutboundPort:         read(r, KeyOutboundPort, settingOutboundPort, onePort),
		InboundPort:          read(r, KeyInboundPort, settingInboundPort, onePort),
		TunnelPort:           read(r, KeyTunnelPort, settingTunnelPort, onePort),
		IncludeCIDRs:         read(r, keyIncludeCIDRs, settingIncludeCIDRs, includedCIDRs),
		ExcludeCIDRs:         read(r, keyExcludeCIDRs, settingExcludeCIDRs, excludedCIDRs),
		IncludeInboundPorts:  r.inboundPorts(),
		ExcludeInboundPorts:  append(excludeIn, alwaysExcluded()...),
		IncludeOutboundPorts: read(r, keyIncludeOutbound, settingIncludeOutbound, portList),
		ExcludeOutboundPorts: read(r, keyExcludeOutbound, settingExcludeOutbound, portList),
		DirectIPv6:           read(r, KeyIPv6, settingIPv6, oneOf(ipv6Capture, ipv6Direct)),
		OwnerGroups:          iptables.Groups{All: true},
		LoopbackCIDR:         netip.MustParsePrefix(loopbackCIDR),
	}
}

// read looks a setting up and parses it.
func read[T any](r *reader, key, flag string, parse func(key, value string) (T, error)) T {
	return take(r, flag, r.lookup(key, flag), parse)
}

// take parses the value of a setting.
func take[T any](r *reader, setting string, f found, parse func(key, value string) (T, error)) T {
	if r.from != nil {
		r.from[setting] = f.origin + f.key
	}
	out, err := parse(f.name, f.value)
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

// The values of KeyInboundPorts: all of the included inbound ports go to the proxy, or those of them on which a socket of the pod listens when
// a connection is opened.
const (
	inboundAll       = "all"
	inboundListening = "listening"
)

// oneOf returns a parser of two values, which reports whether the value is the second.
func oneOf(no, yes string) func(key, value string) (bool, error) {
	return func(key, value string) (bool, error) {
		if value != no && value != yes {
			return false, &ValueError{Key: key, Value: value, Want: no + " or " + yes}
		}
		return value == yes, nil
	}
}

// inboundPorts reads which inbound ports are captured. Whether only listening ones are, the annotation decides first, then the profile of the
// pod's proxy, and the flag.
func (r *reader) inboundPorts() iptables.Ports {
	out := read(r, keyIncludeInbound, settingIncludeInbound, ports)
	which := r.ofProfile(KeyInboundPorts, settingInboundPorts, func(p *ManagedProxy) string { return p.InboundPorts })
	out.Listening = take(r, settingInboundPorts, which, oneOf(inboundAll, inboundListening))
	return out
}

// interfaces reads the lists of interface names.
func (r *reader) interfaces(s *iptables.Spec) {
	s.ExcludeInterfaces = read(r, keyExcludeInterfaces, settingExcludeInterfaces, interfaceList)
	s.RerouteInterfaces = read(r, r.rerouteKey(), settingReroute, interfaceList)
}

// rerouteKey returns the key that counts for the interfaces of virtual machines. Of the two keys of a pod the newer one counts, even if it is
// empty; either one counts before the namespace's.
func (r *reader) rerouteKey() string {
	for _, of := range []map[string]string{r.annotations, r.namespace} {
		if _, newer := of[keyReroute]; newer {
			return keyReroute
		}
		if _, older := of[keyKubevirt]; older {
			return keyKubevirt
		}
	}
	return keyReroute
}

func validationExcluded(key string) error {
	return fmt.Errorf("%s: port %d is excluded, and istio-validation looks for the rules by it: take it out", key, iptables.IstioValidationPort)
}

// checkable returns an error for settings that keep Istio's validation from the inbound listener. The init container istio-validation
// connects as the proxy over lo to 127.0.0.6 port 15002; if that leads elsewhere, the pod never gets past it.
func (r *reader) checkable(s iptables.Spec) error {
	const port = iptables.IstioValidationPort
	if slices.Contains(s.ExcludeOutboundPorts, port) {
		return validationExcluded(r.lookup(keyExcludeOutbound, settingExcludeOutbound).name)
	}
	if slices.Contains(s.ExcludeInterfaces, "lo") {
		return fmt.Errorf("%s: lo is excluded, and istio-validation looks for the rules by it: take it out", r.lookup(keyExcludeInterfaces, settingExcludeInterfaces).name)
	}
	for _, p := range []struct {
		key, flag string
		port      uint16
	}{
		{KeyOutboundPort, settingOutboundPort, s.OutboundPort},
		{KeyInboundPort, settingInboundPort, s.InboundPort},
		{KeyTunnelPort, settingTunnelPort, s.TunnelPort},
	} {
		if p.port == port {
			return fmt.Errorf("%s: istio-validation looks for the rules by port %d: choose another one", r.lookup(p.key, p.flag).name, port)
		}
	}
	return nil
}
