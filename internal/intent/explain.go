package intent

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/iptables"
)

// Setting is one setting of a pod's traffic, and where its value comes from.
type Setting struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Source string `json:"source"`
}

// Explanation is what a pod asks for, and where each part of that comes from.
type Explanation struct {
	Intent
	// AskedBy says what asks for redirection, or refuses it; "" if nothing does.
	AskedBy string
	// Settings are the Spec's settings, how long connections wait for the proxy, and what becomes of the pod beside foreign rules, if the pod is
	// redirected.
	Settings []Setting
}

// Explain returns what Of returns, with the sources. Both read the pod with the same code.
func Explain(pod *corev1.Pod, ns *corev1.Namespace, c Config) (Explanation, error) {
	from := sources{}
	in, err := c.of(pod, ns, from)
	out := Explanation{Intent: in, AskedBy: c.askedBy(pod, ns, in.Managed)}
	if in.Redirect {
		out.Settings = append(settingsOf(in.Spec, from), holdSetting(in.Hold, from), foreignSetting(ns, c.Defaults, from))
	}
	return out, err
}

// askedBy returns what asks for redirection or refuses it.
func (c Config) askedBy(pod *corev1.Pod, ns *corev1.Namespace, managed bool) string {
	_, own := pod.Annotations[KeyInitialize]
	_, chosen := pod.Annotations[KeySidecar]
	switch {
	case managed && chosen:
		return fromPod + KeySidecar
	case managed:
		return fromNamespace + KeySidecar
	case own:
		return fromPod + KeyInitialize
	case c.Select != SelectInjected && Asked(pod, ns):
		return fromNamespace + KeyInitialize
	case c.Select != SelectAnnotation && injected(pod) == "":
		return "injection by Istio (" + fromFlag + "select=" + string(c.Select) + ")"
	}
	return ""
}

// settingsOf returns the settings of a Spec in the syntax of annotations.
func settingsOf(s iptables.Spec, from sources) []Setting {
	out := []Setting{
		{Name: settingMode, Value: string(s.Mode)},
		{Name: settingOutboundPort, Value: decimal(s.OutboundPort)},
		{Name: settingInboundPort, Value: decimal(s.InboundPort)},
		{Name: settingTunnelPort, Value: decimal(s.TunnelPort)},
		{Name: settingUID, Value: id(s.ProxyUID)},
		{Name: settingGID, Value: id(s.ProxyGID)},
		{Name: settingIncludeCIDRs, Value: allOr(s.IncludeCIDRs.All, list(s.IncludeCIDRs.List, netip.Prefix.String))},
		{Name: settingExcludeCIDRs, Value: list(s.ExcludeCIDRs, netip.Prefix.String)},
		{Name: settingIncludeOutbound, Value: portWords(s.IncludeOutboundPorts, s.Ranges.IncludeOutbound)},
		{Name: settingExcludeOutbound, Value: portWords(s.ExcludeOutboundPorts, s.Ranges.ExcludeOutbound)},
		{Name: settingIncludeInbound, Value: allOr(s.IncludeInboundPorts.All, portWords(s.IncludeInboundPorts.List, s.Ranges.IncludeInbound))},
		// The ports that are always excluded may be excluded twice.
		{Name: settingExcludeInbound, Value: portWords(slices.Compact(slices.Sorted(slices.Values(s.ExcludeInboundPorts))), s.Ranges.ExcludeInbound)},
		{Name: settingExcludeSources, Value: list(s.ExcludeSources, netip.Prefix.String)},
		{Name: settingExcludeUsers, Value: list(s.ExcludeUsers, iptables.Users.String)},
		{Name: settingInboundPorts, Value: map[bool]string{true: inboundListening, false: inboundAll}[s.IncludeInboundPorts.Listening]},
		{Name: settingIPv6, Value: map[bool]string{true: ipv6Direct, false: ipv6Capture}[s.DirectIPv6]},
		{Name: settingDNS, Value: map[iptables.DNSMode]string{iptables.DNSAll: "all", iptables.DNSResolvConf: "resolv.conf", iptables.DNSOff: "off"}[s.DNS]},
		{Name: settingResolvers, Value: list(s.Resolvers, netip.Addr.String)},
		{Name: settingGroups, Value: allOr(s.OwnerGroups.All, list(s.OwnerGroups.List, decimal[uint32]))},
		{Name: settingGroupsExcept, Value: list(s.OwnerGroups.Exclude, decimal[uint32])},
		{Name: settingLoopback, Value: s.LoopbackCIDR.String()},
		{Name: settingExcludeInterfaces, Value: strings.Join(s.ExcludeInterfaces, ",")},
		{Name: settingReroute, Value: strings.Join(s.RerouteInterfaces, ",")},
		{Name: settingRerouteDNS, Value: strconv.FormatBool(s.RerouteDNS)},
		{Name: settingDropInvalid, Value: strconv.FormatBool(s.DropInvalid)},
	}
	for i := range out {
		out[i].Source = fromDefault
		if source, ok := from[out[i].Name]; ok {
			out[i].Source = source
		}
	}
	return out
}

func portWords(ports []uint16, ranges []iptables.PortRange) string {
	words := []string{list(ports, decimal[uint16]), list(ranges, iptables.PortRange.String)}
	return strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), ",")
}

func decimal[N uint16 | uint32](n N) string { return strconv.FormatUint(uint64(n), 10) }

// id returns an id of the proxy, or nothing if the rules do not go by it.
func id(n uint32) string {
	if n == 0 {
		return ""
	}
	return decimal(n)
}

func allOr(all bool, list string) string {
	if all {
		return "*"
	}
	return list
}

func list[T any](items []T, text func(T) string) string {
	words := make([]string, len(items))
	for i, item := range items {
		words[i] = text(item)
	}
	return strings.Join(words, ",")
}
