package charttest

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

const withTLS = "monitoring: {secure: true, tlsSecret: agent-tls, serviceMonitor: {enabled: true, endpoint: {tlsConfig: {serverName: istio-pod-network-controller}}}}"

// The agent's pod declares no port, so the Service has numbers. It chooses the agents, and is found by the ServiceMonitor.
func TestServiceAndServiceMonitorFindTheAgents(t *testing.T) {
	made := rendering(t, "monitoring: {serviceMonitor: {enabled: true, labels: {release: kps}}}")
	service, monitor := one[*corev1.Service](t, made.objects), made.custom(t, "ServiceMonitor", "")
	pods := made.daemonSet(t).Spec.Template.Labels
	chosen, _ := at(monitor, "spec", "selector", "matchLabels").(map[string]any)
	for key, value := range service.Spec.Selector {
		if pods[key] != value || service.Labels[key] != value || chosen[key] != value || len(chosen) != len(service.Spec.Selector) {
			t.Errorf("%s: %s, of the pods %v, of the Service %v, chosen by the ServiceMonitor %v", key, value, pods, service.Labels, chosen)
		}
	}
	port := service.Spec.Ports[0]
	if len(chosen) == 0 || service.Spec.ClusterIP != corev1.ClusterIPNone || !service.Spec.PublishNotReadyAddresses || port.Name != "metrics" || port.TargetPort.IntValue() != 15079 {
		t.Errorf("the Service is %+v", service.Spec)
	}
	if at(monitor, "metadata", "labels", "release") != "kps" || monitor["apiVersion"] != "monitoring.coreos.com/v1" {
		t.Errorf("the ServiceMonitor is %v", monitor)
	}
}

// What values mean for the one endpoint of the ServiceMonitor. With monitoring.secure the scrape has a token and TLS.
func TestServiceMonitor_endpoint(t *testing.T) {
	const own = "{action: replace, sourceLabels: [__meta_kubernetes_pod_node_name], targetLabel: node}, {action: replace, targetLabel: job, replacement: " + name + "}, {action: labeldrop, regex: pod|container|endpoint}"
	const token = "bearerTokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token"
	for in, want := range map[string]string{
		"monitoring: {serviceMonitor: {enabled: true, endpoint: {interval: 15s}}}": "{port: metrics, interval: 15s, relabelings: [" + own + "]}",
		"monitoring: {secure: true, serviceMonitor: {enabled: true}}":              "{port: metrics, interval: 30s, scheme: https, " + token + ", tlsConfig: {insecureSkipVerify: true}, relabelings: [" + own + "]}",
		withTLS: "{port: metrics, interval: 30s, scheme: https, " + token + ", tlsConfig: {serverName: " + name + "}, relabelings: [" + own + "]}",
		"monitoring: {secure: true, serviceMonitor: {enabled: true, endpoint: {scrapeTimeout: 5s, authorization: {credentials: {name: p, key: k}}, relabelings: [{targetLabel: c, replacement: a}], metricRelabelings: [{action: labeldrop, regex: n}]}}}": "{port: metrics, interval: 30s, scrapeTimeout: 5s, scheme: https, authorization: {credentials: {name: p, key: k}}, tlsConfig: {insecureSkipVerify: true}, " +
			"relabelings: [" + own + ", {action: replace, targetLabel: c, replacement: a}], metricRelabelings: [{action: labeldrop, regex: n}]}",
	} {
		got := at(rendering(t, in).custom(t, "ServiceMonitor", ""), "spec", "endpoints")
		same(t, yamlOf(t, parse(t, "list: ["+want+"]")["list"]), yamlOf(t, got), "%s: endpoints", in)
	}
}

func TestServiceFollowsTheAddress(t *testing.T) {
	for values, want := range map[string]int{
		`monitoring.address: "10.0.0.1:9000"`: 9000, `monitoring.address: "[::]:9000"`: 9000, `monitoring.address: "0"`: 0, "{}": 15079,
	} {
		got := 0
		for _, s := range all[*corev1.Service](rendering(t, values).objects) {
			got = s.Spec.Ports[0].TargetPort.IntValue()
		}
		if got != want {
			t.Errorf("%s: port %d, want %d", values, got, want)
		}
	}
}

// The dashboard is a ConfigMap with the text of files/dashboard.json.
func TestDashboardIsAConfigMap(t *testing.T) {
	m := one[*corev1.ConfigMap](t, rendering(t, "monitoring: {dashboard: {enabled: true, metadata: {namespace: grafana, annotations: {grafana_folder: Network}}}}").objects)
	if m.Data["istio-pod-network-controller.json"] != strings.TrimSpace(read(t, dashboardFile)) {
		t.Error("the ConfigMap has another text than files/dashboard.json")
	}
	if m.Labels["grafana_dashboard"] != "1" || m.Annotations["grafana_folder"] != "Network" || m.Namespace != "grafana" {
		t.Errorf("namespace %s, labels %v, annotations %v", m.Namespace, m.Labels, m.Annotations)
	}
}

// The PrometheusRule has the rule file's alerts, with templates of Prometheus as they are, and the reader's own address of the runbook. The alerts
// about the DaemonSet know it by its name, whatever values that comes from.
func TestPrometheusRuleIsTheRuleFile(t *testing.T) {
	const known = `daemonset=~"(.+-)?` + name + `"`
	if !strings.Contains(read(t, alertsFile), known) {
		t.Errorf("no alert is about the DaemonSet by %s", known)
	}
	for values, named := range map[string]string{"fullnameOverride: ''": known, "fullnameOverride: pods": `daemonset="pods"`} {
		made := rendering(t, "{"+values+", monitoring: {prometheusRule: {enabled: true, labels: {release: kps}, runbookURL: 'https://wiki/net'}}}")
		want := strings.NewReplacer("docs/monitoring.md#", "https://wiki/net#", known, named).Replace(read(t, alertsFile))
		same(t, yamlOf(t, parse(t, want)), yamlOf(t, at(made.custom(t, "PrometheusRule", ""), "spec")), "%s: rules", values)
		if rule := made.custom(t, "PrometheusRule", ""); at(rule, "metadata", "labels", "release") != "kps" || rule["apiVersion"] != "monitoring.coreos.com/v1" {
			t.Errorf("the PrometheusRule is %v of %v", rule["metadata"], rule["apiVersion"])
		}
	}
}

func TestPrometheusRule_withoutARunbook_hasNoLink(t *testing.T) {
	text := yamlOf(t, rendering(t, "monitoring.prometheusRule.enabled: true").custom(t, "PrometheusRule", ""))
	expectWords(t, text, false, "runbook_url")
	expectWords(t, text, true, "PodNetworkAgentDown", "PodNetworkUpdateNotFinished")
}
