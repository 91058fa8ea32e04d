package intent

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Names of settings: those of their flags, or of the same form for those without a flag.
const (
	settingMode              = "interception-mode"
	settingOutboundPort      = "envoy-port"
	settingInboundPort       = "envoy-inbound-port"
	settingTunnelPort        = "envoy-tunnel-port"
	settingIncludeCIDRs      = "include-outbound-ip-ranges"
	settingExcludeCIDRs      = "exclude-outbound-ip-ranges"
	settingIncludeInbound    = "include-inbound-ports"
	settingExcludeInbound    = "exclude-inbound-ports"
	settingIncludeOutbound   = "include-outbound-ports"
	settingExcludeOutbound   = "exclude-outbound-ports"
	settingIPv6              = "ipv6"
	settingInboundPorts      = "inbound-ports"
	settingUID               = "proxy-uid"
	settingGID               = "proxy-gid"
	settingExcludeInterfaces = "exclude-interfaces"
	settingReroute           = "reroute-virtual-interfaces"
	settingRerouteDNS        = "reroute-dns"
	settingExcludeSources    = "exclude-inbound-ip-ranges"
	settingExcludeUsers      = "exclude-outbound-uids"
	settingGroups            = "owner-groups"
	settingGroupsExcept      = "exclude-owner-groups"
	settingLoopback          = "loopback-cidr"
	settingDNS               = "dns-capture"
	settingResolvers         = "resolvers"
	settingDropInvalid       = "drop-invalid"
)

// Where a setting can come from. The first ones are completed by a key or a name.
const (
	fromPod        = "annotation of the pod: "
	fromNamespace  = "annotation of the namespace: "
	fromEnv        = "environment of container " + ProxyContainer + ": "
	fromFlag       = "flag of the agent: --"
	fromContext    = "securityContext of container "
	fromPodContext = "securityContext of the pod"
	fromProfile    = "ProxyProfile "
	fromPodDNS     = "dnsConfig of the pod"
	fromRuntime    = "container runtime"
	fromDefault    = "default"
)

// sources holds where each setting of a pod comes from, by the setting's name. nil records nothing.
type sources map[string]string

func (s sources) set(setting, source string) {
	if s != nil {
		s[setting] = source
	}
}

// add records one more source of a setting.
func (s sources) add(setting, source string) {
	if others, ok := s[setting]; ok {
		source = others + ", " + source
	}
	s.set(setting, source)
}

// ofFlag returns where the value of a flag comes from.
func (s sources) ofFlag(flag, value string) (origin, key string) {
	if s == nil || value == StandardDefaults()[flag] {
		return fromDefault, ""
	}
	return fromFlag, flag
}

// env records a setting if the proxy's container has the variable.
func (s sources) env(proxy *corev1.Container, name, setting string) {
	if _, ok := lookupEnv(proxy, name); ok {
		s.set(setting, fromEnv+name)
	}
}

// owner records where the proxy's ids come from.
func (s sources) owner(pod *corev1.Pod) {
	if s == nil {
		return
	}
	crew := crewOf(pod)
	for _, id := range []struct {
		setting string
		kind    idKind
	}{{settingUID, uidKind()}, {settingGID, gidKind()}} {
		claim := crew.claim(id.kind)
		source := claim.from
		switch r := claim.rival; {
		case r.field != "":
			source = fmt.Sprintf("%s (but container %s can act as %s %d by %s)", source, r.name, id.kind.name, claim.id, r.by())
		case r.name != "":
			source = fmt.Sprintf("%s (but container %s has %s %d, too)", source, r.name, id.kind.name, claim.id)
		}
		s[id.setting] = source
	}
}

// managed records what the profile of a proxy that the agent runs decides.
func (s sources) managed(profile string) {
	for _, setting := range []string{settingMode, settingOutboundPort, settingInboundPort, settingUID, settingGID} {
		s.set(setting, fromProfile+profile)
	}
}

// resolvers records where the pod's name servers come from.
func (s sources) resolvers(pod *corev1.Pod, all []netip.Addr) {
	own := 0
	if pod.Spec.DNSConfig != nil {
		own = len(Addrs(pod.Spec.DNSConfig.Nameservers))
	}
	var from []string
	if len(all) > own {
		from = append(from, fromFlag+"cluster-dns")
	}
	if own > 0 && len(all) > 0 {
		from = append(from, fromPodDNS)
	}
	s.set(settingResolvers, cmp.Or(strings.Join(from, ", "), fromRuntime))
}
