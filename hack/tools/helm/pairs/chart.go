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
	return map[string][]string{"old": nil, "new": policies, "openshift": append(policies, "security.openshift.io/v1")}
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
		"admission.waitResources": {nil}, "admission.waitTimeout": {"1m30s"},
		"appArmorProfile": {object{"type": "Localhost", "localhostProfile": "agent"}},
		"affinity":        {object{"nodeAffinity": object{"preferredDuringSchedulingIgnoredDuringExecution": list{object{"weight": 1, "preference": object{"matchFields": list{object{"key": "metadata.name", "operator": "In", "values": list{"a"}}}}}}}}},
		"clusterDNS":      {list{"10.96.0.10", "fd00::10"}},
		"cniBinDir":       {"/usr/libexec/cni"}, "cniConfDir": {"/run/crio/net.d"}, "cniExcludeNamespaces": {list{"a-*"}},
		"cniPluginSource": {"/plugin"}, "cniSocket": {"/run/agent/cni.sock"},
		"commonLabels": {object{"example.com/team": "mesh", "tier": "x"}},
		"envoyPort":    {25001}, "envoyInboundPort": {25006}, "envoyTunnelPort": {25008},
		"excludeInboundPorts": {list{}}, "excludeNamespaces": {list{}}, "excludeOutboundIPRanges": {list{"10.96.0.0/12"}}, "excludeOutboundPorts": {list{22}},
		"extraEnv":          {list{object{"name": "HTTP2_PING_TIMEOUT_SECONDS", "value": "7"}, object{"name": "A", "valueFrom": object{"fieldRef": object{"fieldPath": "status.hostIP"}}}}},
		"extraVolumeMounts": {list{object{"name": "netns", "mountPath": "/extra"}}},
		"extraVolumes":      {list{object{"name": "extra", "configMap": object{"name": "a"}}}},
		"fullnameOverride":  {"redirector"}, "global": {object{"a": 1}},
		"healthAddr":   {"127.0.0.1:15078"},
		"image.digest": {"sha256:" + strings.Repeat("0a", 32)}, "image.repository": {"registry.example.com:5000/agent"}, "image.tag": {"7"},
		"imagePullSecrets": {list{object{"name": "registry"}}}, "includeInboundPorts": {list{80, 8080}},
		"includeOutboundIPRanges": {list{"10.0.0.0/8", "fd00::/8"}}, "includeOutboundPorts": {list{3306}},
		"inspectAddr": {"127.0.0.1:25078"}, "kubeletDir": {"/var/lib/k0s/kubelet"},
		"metrics.tlsSecret": {"metrics-tls"}, "metrics.serviceMonitor.interval": {"5m"}, "metrics.serviceMonitor.labels": {object{"release": "prometheus"}},
		"metrics.serviceMonitor.tlsConfig": {object{"serverName": "agent"}}, "metrics.serviceMonitor.scrapeTimeout": {"5s"},
		"metrics.serviceMonitor.authorization":     {object{"credentials": object{"name": "prometheus", "key": "token"}}},
		"metrics.serviceMonitor.relabelings":       {list{object{"targetLabel": "cluster", "replacement": "a"}}},
		"metrics.serviceMonitor.metricRelabelings": {list{object{"action": "labeldrop", "regex": "node"}}},
		"metrics.prometheusRule.labels":            {object{"release": "prometheus"}}, "metrics.prometheusRule.runbookURL": {"https://example.com/monitoring"},
		"metrics.dashboard.labels": {object{"dashboards": "yes"}}, "metrics.dashboard.annotations": {object{"folder": "mesh"}}, "metrics.dashboard.namespace": {"monitoring"},
		"metricsAddr": {"0", 0, "127.0.0.1:25079"}, "nodeSelector": {object{"a": "b"}},
		"nameOverride": {"mesh"}, "nriIndex": {"05", 10}, "nriName": {"mesh"}, "nriSocket": {"/run/other/nri.sock"},
		"podAnnotations": {object{"a": "b"}}, "podLabels": {object{"example.com/team": "other"}},
		"pprofAddr": {0, "127.0.0.1:25080"}, "priorityClassName": {"mesh-critical"},
		"resourceQuota.pods": {100}, "resources": {nil}, "runtimeEndpoint": {"/run/user.sock", "unix:///run/k0s/containerd.sock"},
		"seLinuxOptions":             {object{"type": "spc_t", "level": "s0"}},
		"serviceAccount.annotations": {object{"a": "b"}}, "serviceAccount.name": {"own"},
		"sidecars.secrets": {list{"a", "b.c"}}, "sidecars.tokenAudiences": {list{"istio-ca"}}, "sidecars.configMaps": {list{"ca", "istio-ca-root-cert"}}, "sidecars.shared": {sharedProxies()},
		"sidecars.istio.image": {"localhost/proxyv2:1"}, "sidecars.istio.revision": {"1-31"}, "sidecars.istio.namespace": {"mesh"},
		"sidecars.istio.namespaceSelector": {object{}}, "sidecars.istio.spec": {object{"istio": object{"update": object{"handover": object{"none": object{}}}}}},
		"startupTaintKey":               {"startup-taint.cluster-autoscaler.kubernetes.io/mesh"},
		"terminationGracePeriodSeconds": {60}, "tolerations": {list{}, list{object{"key": "a"}}, nil}, "unsupportedRuntimeHandlers": {list{}},
		"updateStrategy": {object{"type": "OnDelete"}, object{"rollingUpdate": object{"maxSurge": 0, "maxUnavailable": 1}}},
		"verifyInterval": {"1h30m"}, "holdSeconds": {0},
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
		{"contradict each other", func(v At) bool {
			old, _ := v("kubernetesDistribution").(string)
			return old != "" && v("platform") != "kubernetes" && v("platform") != strings.ToLower(old)
		}},
		{"name your account", func(v At) bool { return v("serviceAccount.create") == false && v("serviceAccount.name") == "" }},
		{"metrics are not served by TLS", func(v At) bool { return v("metrics.tlsSecret") != "" && v("metrics.secure") != true }},
		{"finds the agents by the Service", func(v At) bool { return v("metrics.serviceMonitor.enabled") == true && v("metrics.service") != true }},
		{"Prometheus cannot reach that", func(v At) bool {
			return v("metrics.serviceMonitor.enabled") == true && slices.Contains([]any{"0", 0, "127.0.0.1:25079"}, v("metricsAddr"))
		}},
		{"on what looks like openshift", func(v At) bool {
			plain := v("platform") == "kubernetes" && slices.Contains([]any{"", "Kubernetes"}, v("kubernetesDistribution"))
			return v("cni") == "install" && v(ClusterPath) == "openshift" && plain && (v("cniBinDir") == "" || v("cniConfDir") == "")
		}},
		{"the agent does not connect to NRI", func(v At) bool { return v("admission.requiredPlugins") == true && off(v("nri")) }},
		{"two agents of a node cannot both listen there", func(v At) bool {
			strategy, _ := v("updateStrategy").(map[string]any)
			rolling, _ := strategy["rollingUpdate"].(map[string]any)
			return v("healthAddr") == "127.0.0.1:15078" && strategy["type"] != "OnDelete" && rolling["maxSurge"] != 0
		}},
	}...)
}

// off is a switch that is off: YAML reads the word without quotes as false.
func off(value any) bool { return value == "off" || value == false }
