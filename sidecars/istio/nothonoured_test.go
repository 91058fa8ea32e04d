package istio

import (
	"cmp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestProxy_whatIsNotHonoured_isSaid(t *testing.T) {
	values := func(global string) string { return `{"global": {"pilotCertProvider": "istiod", ` + global + `}}` }
	probe := func(handler corev1.ProbeHandler) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { pod.Spec.Containers[0].LivenessProbe = &corev1.Probe{ProbeHandler: handler} }
	}
	and := func(changes ...func(*corev1.Pod)) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			for _, change := range changes {
				change(pod)
			}
		}
	}
	const rewriting = `{"global": {"pilotCertProvider": "istiod"}, "sidecarInjectorWebhook": {"rewriteAppHTTPProbe": true, "defaultTemplates": ["sidecar"]}}`
	tcp := corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{}}
	scraped := annotated("prometheus.io/scrape", "true")
	cases := map[string]struct {
		mesh, values string
		change       func(*corev1.Pod)
		want         string // the only sentence's beginning; empty: there is none
	}{
		"a volume":                       {change: annotated("sidecar.istio.io/userVolume", "{}"), want: "annotation sidecar.istio.io/userVolume={} has no effect: the mounts"},
		"a mount":                        {change: annotated("sidecar.istio.io/userVolumeMount", "{}"), want: "annotation sidecar.istio.io/userVolumeMount={} has no effect: the mounts"},
		"a bootstrap":                    {change: annotated("sidecar.istio.io/bootstrapOverride", "b"), want: "annotation sidecar.istio.io/bootstrapOverride=b has no effect: its ConfigMap"},
		"an image":                       {change: annotated("sidecar.istio.io/proxyImage", "i"), want: "annotation sidecar.istio.io/proxyImage=i has no effect: the image"},
		"a memory request":               {change: annotated("sidecar.istio.io/proxyMemory", "1"), want: "annotation sidecar.istio.io/proxyMemory=1 has no effect: a memory request"},
		"templates":                      {change: annotated("inject.istio.io/templates", "sidecar,mine"), want: "injection templates sidecar,mine have no effect"},
		"the usual template":             {change: annotated("inject.istio.io/templates", "sidecar")},
		"templates of the mesh":          {values: `{"global": {"pilotCertProvider": "istiod"}, "sidecarInjectorWebhook": {"defaultTemplates": ["sidecar", "mine"]}}`, want: "injection templates sidecar,mine have no effect"},
		"TPROXY":                         {change: annotated(keyMode, "TPROXY"), want: "interception mode TPROXY has no effect"},
		"TPROXY of the mesh":             {mesh: "defaultConfig: {interceptionMode: TPROXY}", want: "interception mode TPROXY has no effect"},
		"NONE":                           {change: annotated(keyMode, "NONE"), want: "interception mode NONE has no effect"},
		"NONE of the mesh":               {mesh: "defaultConfig: {interceptionMode: NONE}", want: "interception mode NONE has no effect"},
		"the usual mode":                 {change: annotated(keyMode, "REDIRECT"), mesh: "defaultConfig: {interceptionMode: NONE}"},
		"no status port":                 {change: annotated(keyStatusPort, "0"), want: "annotation status.sidecar.istio.io/port=0 has no effect"},
		"waiting, as connections do":     {change: annotated(keyConfig, "holdApplicationUntilProxyStarts: true")},
		"a lifecycle":                    {values: values(`"proxy": {"lifecycle": {"preStop": {}}}`), want: "the mesh's value global.proxy.lifecycle has no effect"},
		"no lifecycle":                   {values: values(`"proxy": {"lifecycle": {}}`)},
		"certificates of a secret":       {values: values(`"mountMtlsCerts": true`), want: "the mesh's value global.mountMtlsCerts has no effect"},
		"certificates of GKE":            {values: values(`"caName": "GkeWorkloadCertificate"`), want: "the mesh's value global.caName=GkeWorkloadCertificate has no effect"},
		"Lightstep":                      {values: values(`"proxy": {"tracer": "lightstep"}`), want: "the secret lightstep.cacert"},
		"Datadog":                        {values: values(`"proxy": {"tracer": "datadog"}`), change: annotated(datadog, "{}"), want: "annotation apm.datadoghq.com/env has no effect"},
		"Datadog's, another tracer":      {change: annotated(datadog, "{}")},
		"OpenTelemetry's attributes":     {mesh: "extensionProviders: [{name: a}, {name: b, opentelemetry: {serviceAttributeEnrichment: OTEL_SEMANTIC_CONVENTIONS}}]", want: "serviceAttributeEnrichment"},
		"a network":                      {values: values(`"network": "n"`), want: "label topology.istio.io/network=n is the proxy's only"},
		"a network of the pod's":         {values: values(`"network": "n"`), change: labelled(keyNetwork, "n")},
		"HBONE":                          {change: annotated(keyConfig, `proxyMetadata: {ISTIO_META_ENABLE_HBONE: "true"}`), want: "label networking.istio.io/tunnel is the proxy's only"},
		"metrics":                        {change: scraped, want: "the application's metrics are not merged"},
		"metrics, not merged by the pod": {change: and(scraped, annotated("prometheus.istio.io/merge-metrics", "false"))},
		"metrics, not merged by a mesh":  {mesh: "enablePrometheusMerge: false", change: scraped},
		"a probe":                        {values: rewriting, change: probe(tcp), want: refuses + "livenessProbe of container app"},
		"a probe of gRPC":                {values: rewriting, change: probe(corev1.ProbeHandler{GRPC: &corev1.GRPCAction{}}), want: refuses + "livenessProbe of container app"},
		"a probe by HTTP":                {values: rewriting, change: probe(corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{}}), want: refuses + "livenessProbe of container app"},
		"a command":                      {values: rewriting, change: probe(corev1.ProbeHandler{Exec: &corev1.ExecAction{}})},
		"a probe, not rewritten":         {change: probe(tcp)},
		"a probe, not rewritten by it":   {values: rewriting, change: and(probe(tcp), annotated("sidecar.istio.io/rewriteAppHTTPProbers", "false"))},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			proxy, _ := computed(t, parsed(t, cmp.Or(tc.mesh, aMesh), cmp.Or(tc.values, someMap)), aPod(tc.change))
			switch got := proxy.NotHonoured; {
			case tc.want == "" && len(got) != 0, tc.want != "" && len(got) != 1:
				t.Errorf("%q, want %q", got, tc.want)
			case tc.want != "" && !strings.HasPrefix(got[0], tc.want):
				t.Errorf("%q, want %q", got[0], tc.want)
			}
		})
	}
}
