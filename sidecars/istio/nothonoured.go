package istio

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

const (
	datadog = "apm.datadoghq.com/env"
	hbone   = "ISTIO_META_ENABLE_HBONE"
)

// ignored are annotations without effect, and why.
var ignored = []struct{ key, why string }{
	{"sidecar.istio.io/userVolume", "the mounts are the profile's"},
	{"sidecar.istio.io/userVolumeMount", "the mounts are the profile's"},
	{"sidecar.istio.io/bootstrapOverride", "its ConfigMap is not mounted"},
	{"sidecar.istio.io/proxyImage", "the image is the profile's"},
	{"sidecar.istio.io/proxyImageType", "the image is the profile's"},
	{"sidecar.istio.io/proxyMemory", "a memory request is for the scheduler, which does not know the proxy"},
	{"sidecar.istio.io/capNetBindService", "the proxy has no capabilities"},
	{"proxy.istio.io/overrides", "the proxy is not in the pod's spec"},
}

// notHonoured returns what injection would do for the pod and this proxy does not.
func (m *Mesh) notHonoured(p Pod, config map[string]any, failing []string) (out []string) {
	own, g := p.Pod.Annotations, m.values.Global
	for _, i := range ignored {
		if value, isSet := own[i.key]; isSet {
			out = append(out, fmt.Sprintf("annotation %s=%s has no effect: %s", i.key, value, i.why))
		}
	}
	mode := cmp.Or(own[keyMode], text(config["interceptionMode"]), p.mode())
	templates, isSet := own["inject.istio.io/templates"]
	if !isSet {
		templates = strings.Join(m.values.SidecarInjectorWebhook.DefaultTemplates, ",")
	}
	for _, s := range []struct {
		so   bool
		text string
	}{
		{templates != "" && templates != "sidecar", "injection templates " + templates + " have no effect: the proxy is as by Istio's template sidecar"},
		{mode != p.mode(), "interception mode " + mode + " has no effect: the proxy takes connections by " + p.mode() + ", as its profile says (spec.istio.transparent)"},
		{own[keyStatusPort] == "0", "annotation " + keyStatusPort + "=0 has no effect: readiness needs the port"},
		{len(g.Proxy.Lifecycle) > 0, "the mesh's value global.proxy.lifecycle has no effect: the kubelet does not run the proxy"},
		{g.MountMtlsCerts, "the mesh's value global.mountMtlsCerts has no effect: the secret is not mounted"},
		{g.CAName == "GkeWorkloadCertificate", "the mesh's value global.caName=GkeWorkloadCertificate has no effect: its volume is not mounted"},
		{g.Proxy.Tracer == "lightstep", "the secret lightstep.cacert of the mesh's tracer is not mounted"},
		{g.Proxy.Tracer == "datadog" && own[datadog] != "", "annotation " + datadog + " has no effect: write the variables into the profile"},
		{m.enriched(), "serviceAttributeEnrichment of the mesh's tracing has no effect: OTEL_RESOURCE_ATTRIBUTES is not set"},
		{g.Network != "" && p.Pod.Labels[keyNetwork] == "", "label " + keyNetwork + "=" + g.Network + " is the proxy's only: istiod takes the pod's network from the label of its own namespace"},
		{cloned(config[proxyMetadata])[hbone] == "true" && p.Pod.Labels[keyTunnel] == "", "label " + keyTunnel + " is the proxy's only: no peer sends HBONE to the pod"},
		{
			own["prometheus.io/scrape"] == "true" && choice(own["prometheus.istio.io/merge-metrics"], m.config.EnablePrometheusMerge),
			"the application's metrics are not merged with the proxy's: prometheus.io/port stays the application's",
		},
		{
			len(failing) > 0 && choice(own[keyRewrite], m.values.SidecarInjectorWebhook.RewriteAppHTTPProbe),
			"mTLS mode STRICT refuses probes unless the chart's policy leads them to pilot-agent as the pod is created: " + strings.Join(failing, ", "),
		},
	} {
		if s.so {
			out = append(out, s.text)
		}
	}
	return out
}

func (m *Mesh) enriched() bool {
	for _, provider := range m.config.ExtensionProviders {
		if provider.Opentelemetry.ServiceAttributeEnrichment == "OTEL_SEMANTIC_CONVENTIONS" {
			return true
		}
	}
	return false
}

// choice is a pod's own, or else the mesh's.
func choice(annotation string, otherwise bool) bool {
	if own, err := strconv.ParseBool(annotation); err == nil {
		return own
	}
	return otherwise
}
