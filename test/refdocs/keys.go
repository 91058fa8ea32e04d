package main

import (
	"istio-pod-network-controller/agent"
	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podreport"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/istio"
)

// key describes an annotation, a label or a variable that intent.Of reads.
type key struct {
	name    string
	on      string // what can have it
	values  string
	without string // what holds where it is not set
	meaning string
}

// keys returns every annotation and label that intent.Of reads.
func keys() []key {
	return append(append(ownKeys(), istioKeys()...), []key{
		{"sidecar.istio.io/inject", "pod (label or annotation)", "a bool", "not refused", "with `--select injected` or `either`: false refuses redirection"},
		{istio.KeyProbers, "pod, written by the chart's policy", "JSON", "no probe was led to pilot-agent", "what the pod's probes were: pilot-agent makes them; with `--sidecars` only"},
		{"sidecar.istio.io/status", "pod, written by Istio's injector", "anything", "the pod counts as not injected", "with `--select injected` or `either`: the pod has been injected"},
		{"openshift.io/deployer-pod-for.name", "pod, written by OpenShift", "anything", "the pod is no deployer", "a deployer, not redirected by our annotation"},
		{"openshift.io/build.name", "pod, written by OpenShift", "anything", "the pod is no build", "a build, not redirected by our annotation"},
	}...)
}

// onBoth: a pod's value counts before its namespace's, which is the default of its pods.
const onBoth = "namespace, pod"

// onNamespace: a pod's own has no effect.
const onNamespace = "namespace"

func ownKeys() []key {
	const port, ranges = "a port, 1 to 65535", "ports and ranges of ports"
	return []key{
		{
			intent.KeyInitialize, onBoth, "`true`; on a pod also `false`", "not redirected, unless `--select` says otherwise",
			"asks for redirection; a pod's `false` also removes its rules",
		},
		{intent.KeyOutboundPort, onBoth, port, "`--envoy-port`, 15001", "where the proxy listens for what the pod sends"},
		{intent.KeyInboundPort, onBoth, port, "`--envoy-inbound-port`, 15006", "where the proxy listens for what the pod receives"},
		{intent.KeyTunnelPort, onBoth, port, "`--envoy-tunnel-port`, 15008", "where the proxy listens for tunnels (HBONE)"},
		{
			intent.KeyInboundPorts, onBoth, "`all` or `listening`", "the profile's `inboundPorts`, else `--inbound-ports`, all",
			"`listening` captures an included inbound port only while somebody listens there",
		},
		{
			intent.KeyHoldSeconds, onBoth, "whole seconds, 0 to 600", "the profile's `holdSeconds`, else `--hold-seconds`, 30",
			"how long new connections wait for a proxy that does not listen; 0: they are refused at once",
		},
		{intent.KeyForeignRules, onNamespace, "`fail` or `warn`", "`--foreign-rules`, fail", "what becomes of a pod in which foreign rules may decide about packets before ours: it fails, or stays ready with a warning"},
		{intent.KeyIPv6, onBoth, "`capture` or `direct`", "`capture` with `ISTIO_DUAL_STACK`, else `--ipv6`", "`direct` leaves IPv6 without rules"},
		{intent.KeyDNSCapture, onBoth, "`all`, `resolv.conf` or `off`", "`ISTIO_META_DNS_CAPTURE` of the proxy: all or off", "DNS lookups that go to the proxy: all, to the pod's own resolvers, or none"},
		{intent.KeyIncludeInboundPorts, onBoth, ranges, "Istio's key decides", "ports of the pod that are redirected, beside a list of Istio's key, or instead of its `*`"},
		{intent.KeyExcludeInboundPorts, onBoth, ranges, "Istio's key decides", "ports of the pod that are not redirected, beside Istio's key; also from a list"},
		{intent.KeyIncludeOutboundPorts, onBoth, ranges, "Istio's key decides", "destination ports that go to the proxy, beside Istio's key"},
		{intent.KeyExcludeOutboundPorts, onBoth, ranges, "Istio's key decides", "destination ports that go past the proxy, beside Istio's key"},
		{intent.KeyExcludeSources, onBoth, "nothing, or CIDRs", "nothing", "clients whose connections to the pod are not redirected, on any port"},
		{intent.KeyExcludeUsers, onBoth, "nothing, or users and ranges of users, each also with a port", "nothing", "users whose outbound traffic goes past the proxy, all of it or to one port"},
		{intent.KeySidecar, onBoth, "the name of a ProxyProfile; on a pod also `none`", "the agent runs no proxy", "the agent runs the pod's proxy by this profile; with `--sidecars` only"},
		{
			intent.KeyEgressNames, onNamespace, "nothing, or names, such as `api.example.com,*.example.org`", "nothing is allowed",
			"names to which the namespace's pods may connect, for profiles whose files have them ([egress.md](../egress.md))",
		},
		{
			intent.KeyRestartProxy, "pod", "anything, such as the time", "nothing",
			"a new value has the agent replace the pod's proxy once; with `--sidecars` only",
		},
	}
}

func istioKeys() []key {
	const cidrs, ports, interfaces = "nothing, or CIDRs", "nothing, or ports", "nothing, or interfaces"
	const allPorts = "`*`, nothing, or ports"
	return []key{
		{"sidecar.istio.io/interceptionMode", onBoth, "`REDIRECT`, `TPROXY` or `NONE`", "`--interception-mode`, REDIRECT", "how inbound connections reach the proxy; `NONE` means no rules, and on a pod also removes them"},
		{"traffic.sidecar.istio.io/includeOutboundIPRanges", onBoth, "`*`, nothing, or CIDRs", "`--include-outbound-ip-ranges`, all", "destinations that go to the proxy"},
		{"traffic.sidecar.istio.io/excludeOutboundIPRanges", onBoth, cidrs, "`--exclude-outbound-ip-ranges`, nothing", "destinations that go past the proxy"},
		{"traffic.sidecar.istio.io/includeInboundPorts", onBoth, allPorts, "`--include-inbound-ports`, all", "ports of the pod that are redirected; of a list exactly these"},
		{"traffic.sidecar.istio.io/excludeInboundPorts", onBoth, ports, "`--exclude-inbound-ports`, 15020", "ports of the pod that are not redirected, where all others are"},
		{"traffic.sidecar.istio.io/includeOutboundPorts", onBoth, ports, "`--include-outbound-ports`, nothing", "destination ports that go to the proxy, whatever the address"},
		{"traffic.sidecar.istio.io/excludeOutboundPorts", onBoth, ports, "`--exclude-outbound-ports`, 15020", "destination ports that go past the proxy"},
		{"traffic.sidecar.istio.io/excludeInterfaces", onBoth, interfaces, "nothing", "interfaces of the pod whose traffic is left alone"},
		{"istio.io/reroute-virtual-interfaces", onBoth, interfaces, "nothing", "interfaces to virtual machines behind the pod, whose traffic counts as outbound"},
		{"traffic.sidecar.istio.io/kubevirtInterfaces", onBoth, interfaces, "nothing", "deprecated name of the one above, which counts where both are set"},
	}
}

// environment returns every variable of the proxy's container that intent.Of reads.
func environment() []key {
	const boolean = "a Go bool"
	return []key{
		{name: "ISTIO_META_DNS_CAPTURE", values: boolean, without: "off", meaning: "all DNS lookups go to the proxy, unless the pod's annotation says otherwise"},
		{name: "INVALID_DROP", values: boolean, without: "off", meaning: "TCP packets of no known connection are dropped on arrival"},
		{name: "ISTIO_DUAL_STACK", values: boolean, without: "off", meaning: "the proxy listens on IPv6: it is captured, unless the pod's annotation says otherwise"},
		{name: "ISTIO_OUTBOUND_OWNER_GROUPS", values: "`*`, or group ids", without: "`*`", meaning: "only what these groups send is redirected"},
		{name: "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", values: "group ids", without: "nothing", meaning: "what these groups send is not redirected"},
		{name: "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR", values: "a CIDR", without: "127.0.0.1/32", meaning: "addresses of the pod's own loopback"},
		{name: "DNS_PROXY_ADDR", values: "an address", without: "localhost:15053", meaning: "`[::]:15053` or `:15053`: with DNS capture, lookups of virtual machines, too"},
		{name: "DISABLE_ENVOY", values: boolean, without: "off", meaning: "with `--select injected` or `either`: there is no proxy, and so no redirection"},
	}
}

// writtenKey describes something that the agent writes into objects, or that others write for it.
type writtenKey struct{ name, kind, meaning string }

// written returns every key that the agent writes or removes.
func written() []writtenKey {
	return []writtenKey{
		{podreport.KeyStatus, "annotation of pods", "`initialized`, `failed` or `removed`"},
		{podreport.KeyDetails, "annotation of pods", "JSON: sandbox, path of its network namespace, hook, backend, hash of the Spec, time, message, notes, last repair"},
		{string(podreport.Condition), "condition of pods", "see [conditions.md](conditions.md)"},
		{istio.TLSModeLabel, "label of pods", "`istio` while the pod has Istio's proxy by a ProxyProfile: peers send mTLS to it; another value of the pod's owner stays"},
		{agentstatus.Annotation, "annotation of the agent's own pod", "JSON: version, backend, readiness, hooks, last error"},
		{sidecar.LabelShared, "label of the pods of shared proxies", "written by the chart: the ProxyProfile whose pods the proxy serves; in the agent's namespace alone"},
		{agent.CNIAnnotation, "annotation of the agent's DaemonSet", "written by the chart: the value of `hooks.cni.mode` that its agents have"},
		{podreport.KeyStartupTaint, "taint of nodes", "written by the kubelet or the node's provider; with `hooks.startupTaint.enabled` the agent removes it when it is ready"},
	}
}
