package intent

// Key describes an annotation or a label that Of reads, in words for docs/reference/annotations.md.
type Key struct {
	Name    string
	On      string // what can have it
	Values  string
	Without string // what holds where it is not set
	Meaning string
}

// Keys returns every annotation and label that Of reads. A test compares it with the constants of this package.
func Keys() []Key {
	return append(append(ownKeys(), istioKeys()...), []Key{
		{keyInject, "pod (label or annotation)", "a bool", "not refused", "with `--select injected` or `either`: false refuses redirection, as it refuses Istio's injection"},
		{keyInjected, "pod, written by Istio's injector", "anything", "the pod counts as not injected", "with `--select injected` or `either`: the pod has been injected"},
		{keyDeployer, "pod, written by OpenShift", "anything", "the pod is no deployer", "the pod is a deployer, which is not redirected by our annotation"},
		{keyBuild, "pod, written by OpenShift", "anything", "the pod is no build", "the pod is a build, which is not redirected by our annotation"},
	}...)
}

// onBoth: a pod's value counts before its namespace's, which is the default of its pods.
const onBoth = "namespace, pod"

func ownKeys() []Key {
	const port, ranges = "a port, 1 to 65535", "ports and ranges of ports"
	return []Key{
		{
			KeyInitialize, onBoth, "`true`; on a pod also `false`", "not redirected, unless `--select` says otherwise",
			"asks for redirection. A pod's value counts before its namespace's; `false` on a pod also removes the rules of a running pod",
		},
		{KeyOutboundPort, onBoth, port, "`--envoy-port`, 15001", "where the proxy listens for what the pod sends"},
		{KeyInboundPort, onBoth, port, "`--envoy-inbound-port`, 15006", "where the proxy listens for what the pod receives"},
		{KeyTunnelPort, onBoth, port, "`--envoy-tunnel-port`, 15008", "where the proxy listens for tunnels (HBONE)"},
		{
			KeyInboundPorts, onBoth, "`all` or `listening`", "the profile's `inboundPorts`, else `--inbound-ports`, all",
			"`listening` narrows the included inbound ports to those on which somebody listens when a connection is opened",
		},
		{KeyIPv6, onBoth, "`capture` or `direct`", "`capture` with `ISTIO_DUAL_STACK`, else `--ipv6`", "`direct` leaves IPv6 without rules, for a proxy that does not listen on it"},
		{KeyDNSCapture, onBoth, "`all`, `resolv.conf` or `off`", "`ISTIO_META_DNS_CAPTURE` of the proxy: all or off", "which DNS lookups go to the proxy: all, those to the pod's own resolvers, or none"},
		{KeyIncludeInboundPorts, onBoth, ranges, "Istio's key decides", "ports of the pod that are redirected, in addition to a list of Istio's key, or instead of its `*`"},
		{KeyExcludeInboundPorts, onBoth, ranges, "Istio's key decides", "ports of the pod that are not redirected, in addition to those of Istio's key; also from a list"},
		{KeyIncludeOutboundPorts, onBoth, ranges, "Istio's key decides", "destination ports that go to the proxy, in addition to those of Istio's key"},
		{KeyExcludeOutboundPorts, onBoth, ranges, "Istio's key decides", "destination ports that go past the proxy, in addition to those of Istio's key"},
		{KeyExcludeSources, onBoth, "nothing, or CIDRs", "nothing", "clients whose connections to the pod are not redirected, on any port"},
		{KeyExcludeUsers, onBoth, "nothing, or users and ranges of users, each also with a port", "nothing", "users whose outbound traffic goes past the proxy, all of it or to one port"},
		{KeySidecar, onBoth, "the name of a ProxyProfile; on a pod also `none`", "the agent runs no proxy", "the agent runs the pod's proxy by this profile; with `--sidecars` only"},
		{
			KeyRestartProxy, "pod", "anything, such as the time", "nothing",
			"a new value has the agent replace the proxy that it runs for the pod, once, as for a new version of the profile; with `--sidecars` only",
		},
	}
}

func istioKeys() []Key {
	const cidrs, ports, interfaces = "nothing, or CIDRs", "nothing, or ports", "nothing, or interfaces"
	const allPorts = "`*`, nothing, or ports"
	return []Key{
		{keyMode, onBoth, "`REDIRECT`, `TPROXY` or `NONE`", "`--interception-mode`, REDIRECT", "how inbound connections reach the proxy; `NONE` means no rules. A pod's `NONE` also removes the rules of a running pod, a namespace's does not"},
		{keyIncludeCIDRs, onBoth, "`*`, nothing, or CIDRs", "`--include-outbound-ip-ranges`, all", "destinations that go to the proxy"},
		{keyExcludeCIDRs, onBoth, cidrs, "`--exclude-outbound-ip-ranges`, nothing", "destinations that go past the proxy"},
		{keyIncludeInbound, onBoth, allPorts, "`--include-inbound-ports`, all", "ports of the pod that are redirected; of a list exactly these"},
		{keyExcludeInbound, onBoth, ports, "`--exclude-inbound-ports`, 15020", "ports of the pod that are not redirected, where all others are"},
		{keyIncludeOutbound, onBoth, ports, "`--include-outbound-ports`, nothing", "destination ports that go to the proxy, whatever the address"},
		{keyExcludeOutbound, onBoth, ports, "`--exclude-outbound-ports`, 15020", "destination ports that go past the proxy"},
		{keyExcludeInterfaces, onBoth, interfaces, "nothing", "interfaces of the pod whose traffic is left alone"},
		{keyReroute, onBoth, interfaces, "nothing", "interfaces to virtual machines behind the pod, whose traffic counts as outbound"},
		{keyKubevirt, onBoth, interfaces, "nothing", "deprecated name of the one above, which counts where both are set"},
	}
}

// Environment returns every variable of the proxy's container that Of reads. A test compares it with the constants of this package.
func Environment() []Key {
	const boolean = "a Go bool"
	return []Key{
		{Name: envDNSCapture, Values: boolean, Without: "off", Meaning: "all DNS lookups go to the proxy, unless the pod's annotation says otherwise"},
		{Name: envDropInvalid, Values: boolean, Without: "off", Meaning: "TCP packets of no known connection are dropped on arrival"},
		{Name: envDualStack, Values: boolean, Without: "off", Meaning: "the proxy listens on IPv6: it is captured, unless the pod's annotation says otherwise"},
		{Name: envGroups, Values: "`*`, or group ids", Without: "`*`", Meaning: "only what these groups send is redirected"},
		{Name: envGroupsExcept, Values: "group ids", Without: "nothing", Meaning: "what these groups send is not redirected"},
		{Name: envLoopback, Values: "a CIDR", Without: loopbackCIDR, Meaning: "addresses of the pod's own loopback"},
		{Name: envDNSAddr, Values: "an address", Without: "localhost:15053", Meaning: "`[::]:15053` or `:15053`: lookups of virtual machines go to the proxy's resolver, too, with DNS capture"},
		{Name: envProxyless, Values: boolean, Without: "off", Meaning: "with `--select injected` or `either`: there is no proxy, and so no redirection"},
	}
}
