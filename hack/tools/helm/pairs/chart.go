package pairs

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// ClusterPath is the cluster on which a row is rendered, as if it were a value of the chart: one of Clusters.
const ClusterPath = "cluster"

// Clusters are the kinds that clusters have in addition to the common ones.
func Clusters() map[string][]string {
	const group = "admissionregistration.k8s.io/v1/"
	policies := []string{group + "MutatingAdmissionPolicy", group + "ValidatingAdmissionPolicy"}
	return map[string][]string{"old": {""}, "new": policies, "openshift": append(policies, "security.openshift.io/v1")}
}

// Of returns the search over the values of this project's chart, by its schema and the defaults of values.yaml, and over the clusters.
func Of(text []byte, defaults map[string]any) (*Cover, error) {
	schema, err := Parse(text)
	if err != nil {
		return nil, err
	}
	alternatives := samples()
	for path := range alternatives {
		value, err := defaultOf(defaults, path)
		if err != nil {
			return nil, err
		}
		alternatives[path] = append([]any{value}, alternatives[path]...)
	}
	parameters, err := schema.Parameters(alternatives)
	if err != nil {
		return nil, err
	}
	cluster := Parameter{Path: ClusterPath}
	for _, name := range slices.Sorted(maps.Keys(Clusters())) {
		cluster.Alternatives = append(cluster.Alternatives, name)
	}
	return New(append(parameters, cluster), Rules()), nil
}

// samples are what values may be, beside the default, of which the schema lists no alternatives.
func samples() map[string][]any {
	type object = map[string]any
	type list = []any
	return map[string][]any{
		"kubernetesDistribution":  {"OpenShift", "gke", "eks", "aks", "k3s", "RKE2", "microk8s", "kind", "minikube", "bottlerocket", "talos"},
		"admission.waitResources": {nil},
		"agent.affinity":          {object{"nodeAffinity": object{"preferredDuringSchedulingIgnoredDuringExecution": list{object{"weight": 1, "preference": object{"matchFields": list{object{"key": "metadata.name", "operator": "In", "values": list{"a"}}}}}}}}},
		"agent.appArmorProfile":   {object{"type": "Localhost", "localhostProfile": "agent"}},
		"agent.extraArgs":         {list{"--nri-index=05", "--cluster-dns=10.96.0.10,fd00::10", "--cni-status-needs-agent=true", "--pprof-addr=127.0.0.1:25080", "--verify-interval=1h30m"}},
		"agent.extraEnv":          {list{object{"name": "HTTP2_PING_TIMEOUT_SECONDS", "value": "7"}, object{"name": "A", "valueFrom": object{"fieldRef": object{"fieldPath": "status.hostIP"}}}}},
		"agent.nodeSelector":      {object{"a": "b"}}, "agent.podAnnotations": {object{"a": "b"}}, "agent.podLabels": {object{"example.com/team": "other"}},
		"agent.priorityClassName": {"mesh-critical"}, "agent.priorityQuota": {false, 100}, "agent.resources": {nil},
		"agent.seLinuxOptions": {object{"type": "spc_t", "level": "s0"}}, "agent.tolerations": {list{}, list{object{"key": "a"}}, nil},
		"agent.updateStrategy": {object{"type": "OnDelete"}, object{"rollingUpdate": object{"maxSurge": 0, "maxUnavailable": 1}}},
		"commonLabels":         {object{"example.com/team": "mesh", "tier": "x"}}, "fullnameOverride": {"redirector"}, "global": {object{"a": 1}},
		"hooks.cni.binDir": {"/usr/libexec/cni"}, "hooks.cni.confDir": {"/run/crio/net.d"}, "hooks.cni.excludeNamespaces": {list{"a-*"}},
		"hooks.nri.socket": {"/run/other/nri.sock"}, "hooks.startupTaint.key": {"startup-taint.cluster-autoscaler.kubernetes.io/mesh"},
		"image.pullSecrets": {list{object{"name": "registry"}}}, "image.repository": {"registry.example.com:5000/agent"}, "image.tag": {"7", "sha256:" + strings.Repeat("0a", 32)},
		"monitoring.address": {"0", 0, "127.0.0.1:25079"}, "monitoring.tlsSecret": {"metrics-tls"},
		"monitoring.dashboard.metadata":    {object{"namespace": "monitoring", "labels": object{"dashboards": "yes"}, "annotations": object{"folder": "mesh"}}},
		"monitoring.prometheusRule.labels": {object{"release": "prometheus"}}, "monitoring.prometheusRule.runbookURL": {"https://example.com/monitoring"},
		"monitoring.serviceMonitor.labels":   {object{"release": "prometheus"}},
		"monitoring.serviceMonitor.endpoint": {object{"interval": "5m", "tlsConfig": object{"serverName": "agent"}, "relabelings": list{object{"targetLabel": "cluster", "replacement": "a"}}, "metricRelabelings": list{object{"regex": "node"}}}, object{"authorization": object{"credentials": object{"name": "prometheus", "key": "token"}}}},
		"pods.kubeletDir":                    {"/var/lib/k0s/kubelet"}, "runtime.endpoint": {"/run/user.sock", "unix:///run/k0s/containerd.sock"},
		"proxies.configMaps": {list{"ca", "istio-ca-root-cert"}}, "proxies.secrets": {list{"a", "b.c"}}, "proxies.shared": {sharedProxies()}, "proxies.tokenAudiences": {list{"istio-ca"}},
		"proxies.istio.image": {"localhost/proxyv2:1"}, "proxies.istio.revision": {"1-31"}, "proxies.istio.namespace": {"mesh"},
		"proxies.istio.namespaceSelector": {object{}}, "proxies.istio.spec": {object{"istio": object{"update": object{"handover": object{"none": object{}}}}}},
		"redirection.excludeNamespaces": {list{}}, "redirection.unsupportedRuntimeHandlers": {list{}},
		// Not each key by itself: what is left out of it is the program's.
		"redirection.defaults": {
			object{"interceptionMode": "TPROXY", "includeInboundPorts": list{80, 8080}, "excludeInboundPorts": list{}, "envoyPort": 25001, "envoyInboundPort": 25006, "envoyTunnelPort": 25008, "foreignRules": "warn"},
			object{"interceptionMode": "NONE", "inboundPorts": "listening", "includeOutboundIPRanges": list{"10.0.0.0/8", "fd00::/8"}, "excludeOutboundIPRanges": list{"10.96.0.0/12"}, "includeOutboundPorts": list{3306}, "excludeOutboundPorts": list{22}, "holdSeconds": 0, "ipv6": "direct"},
		},
		"serviceAccount.annotations": {object{"a": "b"}}, "serviceAccount.name": {"own"},
	}
}

// defaultOf is what values.yaml says of a value.
func defaultOf(defaults map[string]any, path string) (any, error) {
	var value any = defaults
	for name := range strings.SplitSeq(path, ".") {
		inside, ok := value.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("default of %s: %v is no map", path, value)
		}
		value = inside[name]
	}
	if value == nil && path == "global" {
		return map[string]any{}, nil
	}
	return value, nil
}

// Rules are what the templates refuse.
func Rules() []Rule {
	return append(sidecarRules(), []Rule{
		{"name your account", func(v At) bool { return v("serviceAccount.create") == false && v("serviceAccount.name") == "" }},
		{"metrics are not served by TLS", func(v At) bool { return v("monitoring.tlsSecret") != "" && v("monitoring.secure") != true }},
		{"Prometheus cannot reach that", func(v At) bool {
			return v("monitoring.serviceMonitor.enabled") == true && slices.Contains([]any{"0", 0, "127.0.0.1:25079"}, v("monitoring.address"))
		}},
		{"on what looks like OpenShift", func(v At) bool {
			return v(ClusterPath) == "openshift" && v("kubernetesDistribution") != "OpenShift"
		}},
		{"admission.enabled=true needs Kubernetes 1.36", func(v At) bool { return v(ClusterPath) == "old" && v("admission.enabled") == true }},
		{"admission.waitContainer=true needs Kubernetes 1.36", func(v At) bool {
			return v(ClusterPath) == "old" && v("admission.enabled") == "auto" && v("admission.waitContainer") == true
		}},
		{"admission.requiredPlugins=true needs Kubernetes 1.36", func(v At) bool {
			return v(ClusterPath) == "old" && v("admission.enabled") == "auto" && v("admission.requiredPlugins") == true
		}},
		{"admission.restrictAgent=true needs Kubernetes 1.30", func(v At) bool { return v(ClusterPath) == "old" && v("admission.restrictAgent") == true }},
		{"admission.allowOptOut=false needs Kubernetes 1.30", func(v At) bool { return v(ClusterPath) == "old" && v("admission.allowOptOut") == false }},
		{"the agent does not connect to NRI", func(v At) bool { return v("admission.requiredPlugins") == true && off(v("hooks.nri.mode")) }},
	}...)
}

// off is a switch that is off: YAML reads the word without quotes as false.
func off(value any) bool { return value == "off" || value == false }
