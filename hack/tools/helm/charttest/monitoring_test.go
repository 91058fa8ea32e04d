package charttest

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// serviceMonitor and prometheusRule have the fields of the Prometheus operator's objects that the chart uses. An unknown one is an error.
type serviceMonitor struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Selector  metav1.LabelSelector `json:"selector"`
		Endpoints []endpoint           `json:"endpoints"`
	} `json:"spec"`
}

type endpoint struct {
	Port            string         `json:"port"`
	Interval        string         `json:"interval"`
	Scheme          string         `json:"scheme"`
	ScrapeTimeout   string         `json:"scrapeTimeout"`
	BearerTokenFile string         `json:"bearerTokenFile"`
	Authorization   map[string]any `json:"authorization"`
	TLSConfig       map[string]any `json:"tlsConfig"`
	Relabelings     []relabeling   `json:"relabelings"`
	// MetricRelabelings are of the metrics, Relabelings of the targets.
	MetricRelabelings []relabeling `json:"metricRelabelings"`
}

type relabeling struct {
	SourceLabels []string `json:"sourceLabels"`
	TargetLabel  string   `json:"targetLabel"`
	Replacement  string   `json:"replacement"`
	Action       string   `json:"action"`
	Regex        string   `json:"regex"`
}

type prometheusRule struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              ruleFile `json:"spec"`
}

// ruleFile is a rule file of Prometheus, and the spec of a PrometheusRule.
type ruleFile struct {
	Groups []struct {
		Name  string `json:"name"`
		Rules []rule `json:"rules"`
	} `json:"groups"`
}

type rule struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// custom returns the one object of a kind that the chart renders, decoded strictly, or nil.
func custom[T any](t *testing.T, values, kind string) *T {
	t.Helper()
	var found *T
	for _, doc := range documents(t, values) {
		var head metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(doc), &head); err != nil {
			t.Fatal(err)
		}
		if head.Kind != kind {
			continue
		}
		if head.APIVersion != "monitoring.coreos.com/v1" || found != nil {
			t.Errorf("%s %s, or a second one", head.APIVersion, kind)
		}
		found = new(T)
		if err := yaml.UnmarshalStrict([]byte(doc), found); err != nil {
			t.Fatalf("decode %s: %v\n%s", kind, err, doc)
		}
	}
	return found
}

const (
	withMonitor = "metrics: {serviceMonitor: {enabled: true, interval: 15s, labels: {release: kps}}}"
	withTLS     = "metrics: {secure: true, tlsSecret: agent-tls, serviceMonitor: {enabled: true, tlsConfig: {serverName: istio-pod-network-controller}}}"
)

// Nothing that needs definitions of others is rendered unless it is asked for.
func TestMonitoringIsOffByDefault(t *testing.T) {
	for _, doc := range documents(t, "{}") {
		for _, word := range []string{"monitoring.coreos.com", "grafana", "metrics-reader"} {
			if strings.Contains(doc, word) {
				t.Errorf("there is a %s in\n%s", word, doc)
			}
		}
	}
}

// service returns the Service of the metrics, or nil.
func service(t *testing.T, values string) *corev1.Service {
	t.Helper()
	for _, doc := range documents(t, values) {
		if s, ok := decode(t, doc).(*corev1.Service); ok {
			return s
		}
	}
	return nil
}

// The agent's pod declares no port, so the Service has numbers. It chooses the agents, and is found by the ServiceMonitor.
func TestServiceAndServiceMonitorFindTheAgents(t *testing.T) {
	s := service(t, withMonitor)
	m := custom[serviceMonitor](t, withMonitor, "ServiceMonitor")
	if s == nil || m == nil || len(m.Spec.Endpoints) != 1 {
		t.Fatalf("Service %v, ServiceMonitor %v", s, m)
	}
	pod := daemonSet(t, withMonitor).Spec.Template
	if !contains(pod.Labels, s.Spec.Selector) || !contains(s.Labels, m.Spec.Selector.MatchLabels) || s.Spec.ClusterIP != corev1.ClusterIPNone || !s.Spec.PublishNotReadyAddresses {
		t.Errorf("the Service chooses %v of pods with %v; the ServiceMonitor chooses %v of Services with %v; %+v",
			s.Spec.Selector, pod.Labels, m.Spec.Selector.MatchLabels, s.Labels, s.Spec)
	}
	port := s.Spec.Ports[0]
	if port.Name != m.Spec.Endpoints[0].Port || port.TargetPort.IntValue() != 15079 || len(pod.Spec.Containers[0].Ports) != 0 {
		t.Errorf("port %+v, endpoint %+v", port, m.Spec.Endpoints[0])
	}
	want := endpoint{Port: "metrics", Interval: "15s", Relabelings: []relabeling{
		{SourceLabels: []string{"__meta_kubernetes_pod_node_name"}, TargetLabel: "node"},
		{TargetLabel: "job", Replacement: "istio-pod-network-controller"},
		{Action: "labeldrop", Regex: "pod|container|endpoint"},
	}}
	if diff := cmp.Diff(want, m.Spec.Endpoints[0]); diff != "" || m.Labels["release"] != "kps" {
		t.Errorf("labels %v, endpoint (-want +got):\n%s", m.Labels, diff)
	}
}

// Post-renderers refuse a map that has a key twice.
func TestLabels_ofAllObjectsAndOfOne_itsOwnCount(t *testing.T) {
	const own = "{enabled: true, labels: {team: metrics}}"
	found := 0
	for _, doc := range documents(t, "{commonLabels: {team: mesh}, metrics: {serviceMonitor: "+own+", prometheusRule: "+own+", dashboard: "+own+"}}") {
		var object map[string]any
		if err := yaml.UnmarshalStrict([]byte(doc), &object); err != nil {
			t.Errorf("%v\n%s", err, doc)
		}
		if labels, _ := object["metadata"].(map[string]any)["labels"].(map[string]any); labels["team"] == "metrics" && labels["app.kubernetes.io/instance"] == name {
			found++
		}
	}
	if found != 3 {
		t.Errorf("%d objects have their own label, want 3", found)
	}
}

// What Prometheus' own installation asks for is handed on, behind what the chart needs itself.
func TestServiceMonitor_valuesOfTheUser_areHandedOn(t *testing.T) {
	const values = `metrics: {secure: true, serviceMonitor: {enabled: true, scrapeTimeout: 5s, authorization: {credentials: {name: prometheus, key: token}},
  relabelings: [{targetLabel: cluster, replacement: a}], metricRelabelings: [{action: labeldrop, regex: node}]}}`
	e := custom[serviceMonitor](t, values, "ServiceMonitor").Spec.Endpoints[0]
	if e.ScrapeTimeout != "5s" || e.BearerTokenFile != "" || e.Authorization["credentials"] == nil || len(e.Relabelings) != 4 || e.Relabelings[3].TargetLabel != "cluster" ||
		len(e.MetricRelabelings) != 1 || e.MetricRelabelings[0].Regex != "node" {
		t.Errorf("endpoint %+v", e)
	}
}

func contains(all, some map[string]string) bool {
	for key, value := range some {
		if all[key] != value {
			return false
		}
	}
	return len(some) > 0
}

func TestServiceFollowsTheAddress(t *testing.T) {
	for name, tc := range map[string]struct {
		values string
		want   int
	}{
		"another port":        {`metricsAddr: "10.0.0.1:9000"`, 9000},
		"IPv6":                {`metricsAddr: "[::]:9000"`, 9000},
		"no metrics":          {`metricsAddr: "0"`, 0},
		"no Service":          {"metrics: {service: false}", 0},
		"one for each to ask": {"{}", 15079},
	} {
		t.Run(name, func(t *testing.T) {
			got := 0
			if s := service(t, tc.values); s != nil {
				got = s.Spec.Ports[0].TargetPort.IntValue()
			}
			if got != tc.want {
				t.Errorf("port %d, want %d", got, tc.want)
			}
		})
	}
}

// With metrics.secure the scrape has a token and TLS, the agent asks the API server, and readers have a role that nobody has yet.
func TestSecureMetrics(t *testing.T) {
	e := custom[serviceMonitor](t, withTLS, "ServiceMonitor").Spec.Endpoints[0]
	if e.Scheme != "https" || !strings.HasPrefix(e.BearerTokenFile, "/var/run/secrets/") || e.TLSConfig["serverName"] != name || e.TLSConfig["insecureSkipVerify"] != nil {
		t.Errorf("endpoint %+v", e)
	}
	self := custom[serviceMonitor](t, "metrics: {secure: true, serviceMonitor: {enabled: true}}", "ServiceMonitor").Spec.Endpoints[0]
	if self.TLSConfig["insecureSkipVerify"] != true {
		t.Errorf("endpoint of a self-signed certificate: %+v", self)
	}
	args := arguments(t, withTLS)
	pod := daemonSet(t, withTLS).Spec.Template.Spec
	mounted := slices.IndexFunc(pod.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == args["metrics-cert-dir"] && m.ReadOnly })
	volume := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool {
		return v.Secret != nil && v.Secret.SecretName == "agent-tls" && *v.Secret.Optional
	})
	if args["metrics-secure"] != "true" || mounted < 0 || volume < 0 || pod.Volumes[volume].Name != pod.Containers[0].VolumeMounts[mounted].Name {
		t.Errorf("arguments %v, mounts %v, volumes %v", args, pod.Containers[0].VolumeMounts, pod.Volumes)
	}
	want := []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}}
	found := false
	for _, doc := range documents(t, withTLS) {
		if role, ok := decode(t, doc).(*rbacv1.ClusterRole); ok && role.Name == name+"-metrics-reader" {
			found = true
			if diff := cmp.Diff(want, role.Rules); diff != "" {
				t.Errorf("the readers' role (-want +got):\n%s", diff)
			}
		}
	}
	if !found {
		t.Error("there is no role for readers")
	}
	scc := constraints(t, "kubernetesDistribution: OpenShift\n"+withTLS)
	if !slices.Contains(scc["volumes"].([]any), any("secret")) {
		t.Errorf("OpenShift lets the agent mount %v only", scc["volumes"])
	}
}

// Values without effect are refused with what to do.
func TestMonitoringRefuses(t *testing.T) {
	for name, tc := range map[string]struct{ values, want string }{
		"a certificate without TLS":             {"metrics: {tlsSecret: a}", "set metrics.secure=true"},
		"a ServiceMonitor without the Service":  {"metrics: {service: false, serviceMonitor: {enabled: true}}", "set metrics.service=true"},
		"a ServiceMonitor of no metrics":        {`{metricsAddr: "0", metrics: {serviceMonitor: {enabled: true}}}`, "set metricsAddr=:15079"},
		"a ServiceMonitor of the node's own":    {"{metricsAddr: '127.0.0.1:15079', metrics: {serviceMonitor: {enabled: true}}}", "set metricsAddr=:15079"},
		"the same by IPv6":                      {"{metricsAddr: '[::1]:15079', metrics: {serviceMonitor: {enabled: true}}}", "set metricsAddr=:15079"},
		"a switch that is no switch":            {"metrics: {serviceMonitor: true}", "got boolean, want object"},
		"an interval without a unit":            {"metrics: {serviceMonitor: {interval: '30'}}", "at '/metrics/serviceMonitor/interval'"},
		"a Secret that cannot be one":           {"metrics: {secure: true, tlsSecret: a/b}", "at '/metrics/tlsSecret'"},
		"a runbook that would end the text":     {`metrics: {prometheusRule: {runbookURL: "a\nb"}}`, "at '/metrics/prometheusRule/runbookURL'"},
		"the values of an older chart":          {"metrics: null", "missing property 'metrics'"},
		"an unknown part of it":                 {"metrics: {podMonitor: true}", "additional properties 'podMonitor' not allowed"},
		"labels that are no words":              {"metrics: {dashboard: {labels: {a: 1}}}", "at '/metrics/dashboard/labels/a'"},
		"a dashboard in a namespace of no name": {"metrics: {dashboard: {namespace: A}}", "at '/metrics/dashboard/namespace'"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := install(t, tc.values); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q in it", err, tc.want)
			}
		})
	}
}
