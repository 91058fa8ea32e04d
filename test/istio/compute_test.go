package istio

import (
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	keyConfig     = "proxy.istio.io/config"
	keyStatusPort = "status.sidecar.istio.io/port"
)

// running is a pod as the agent meets it.
func running(change func(*corev1.Pod)) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Labels = map[string]string{"app": "cart", "team": `"a" \ b`}
		pod.Spec.NodeName, pod.Spec.ServiceAccountName = "node-1", "till"
		pod.Status = corev1.PodStatus{PodIP: "10.0.0.7", HostIP: "192.168.0.3"}
		pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}, {ContainerPort: 9090, HostPort: 9090}}
		if change != nil {
			change(pod)
		}
	}
}

// owned is a pod of a controller.
func owned(apiVersion, kind, name string, labels map[string]string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		yes := true
		pod.Name, pod.GenerateName = name+"-x7k2p", name+"-"
		maps.Copy(pod.Labels, labels)
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: name, Controller: &yes}}
	}
}

func labelled(of map[string]string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { maps.Copy(pod.Labels, of) }
}

func annotatedAll(of map[string]string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { maps.Copy(pod.Annotations, of) }
}

const ownMesh = `
apiVersion: install.istio.io/v1alpha1
kind: IstioOperator
spec:
  revision: canary
  meshConfig:
    trustDomain: example.org
    accessLogFile: /dev/stdout
    inboundTrafficPolicy: {mode: LOCALHOST}
    defaultConfig:
      statusPort: 15030
      proxyAdminPort: 15100
      concurrency: 3
      fileFlushMinSizeKb: 64
      drainDuration: 10s
      holdApplicationUntilProxyStarts: true
      tracing: {sampling: 50, zipkin: {address: "$(HOST_IP):9411"}}
      proxyHeaders: {server: {value: shop}, requestId: {disabled: true}}
      runtimeValues: {a: "1"}
      extraStatTags: [a, b]
      proxyMetadata: {ISTIO_META_DNS_CAPTURE: "true", FROM: "mesh $(POD_NAME) $$(POD_NAME) $(NOBODY)", BOTH: mesh}
  values:
    global:
      network: net-1
      meshID: mesh-1
      logAsJson: true
      logging: {level: "all:debug"}
      multiCluster: {clusterName: east}
      sts: {servicePort: 15463}
      sds: {token: {aud: somebody}}
      trustBundleName: roots
      caAddress: ca.example.org:443
      proxy: {clusterDomain: cluster.example, logLevel: info, componentLogLevel: "misc:error", outlierLogPath: /dev/stdout}
`

// What Istio's injector writes into a pod's spec, and what the proxy manager computes for a proxy in slot 0.
func TestCompute_slot0_isAsInjected(t *testing.T) {
	own := map[string]string{
		keyConfig: "fileFlushMinSizeKb: 0\nextraStatTags: []\nruntimeValues: null\nproxyMetadata: {BOTH: pod, ISTIO_META_DNS_CAPTURE: \"false\"}\nproxyHeaders: {server: {value: till}}\n" +
			"drainDuration: 9s\nconcurrency: 0\nterminationDrainDuration: 7s\nholdApplicationUntilProxyStarts: false",
		"sidecar.istio.io/logLevel": "debug", "sidecar.istio.io/agentLogLevel": "all:warn", "sidecar.istio.io/componentLogLevel": "http:trace",
		"sidecar.istio.io/statsInclusionPrefixes": "a,b", "sidecar.istio.io/discoveryAddress": "other:15012",
	}
	probed := func(pod *corev1.Pod) {
		pod.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{}}}
		pod.Annotations["prometheus.io/scrape"], pod.Annotations["prometheus.io/port"] = "true", "9090"
	}
	cases := map[string]struct {
		operator string
		set      []string
		change   func(*corev1.Pod)
	}{
		"a pod":                                {},
		"of a Deployment":                      {change: owned("apps/v1", "ReplicaSet", "cart-5d8f", map[string]string{"pod-template-hash": "5d8f"})},
		"of an Argo Rollout":                   {change: owned("apps/v1", "ReplicaSet", "cart-5d8f", map[string]string{"rollouts-pod-template-hash": "5d8f"})},
		"of a ReplicaSet":                      {change: owned("apps/v1", "ReplicaSet", "cart-5d8f", nil)},
		"of OpenShift's DeploymentConfig":      {change: owned("v1", "ReplicationController", "cart-1", map[string]string{"deploymentconfig": "cart"})},
		"of a CronJob's Job":                   {change: owned("batch/v1", "Job", "night-28731234", nil)},
		"of a Job":                             {change: owned("batch/v1", "Job", "once", nil)},
		"of a StatefulSet":                     {change: owned("apps/v1", "StatefulSet", "db", nil)},
		"of a kind of somebody's own":          {change: owned("example.org/v1", "Shop", "cart", nil)},
		"labels of Istio's":                    {change: labelled(map[string]string{"service.istio.io/canonical-name": "c", "service.istio.io/canonical-revision": "r", "security.istio.io/tlsMode": "disabled", "topology.istio.io/network": "n", "service.istio.io/workload-name": "w"})},
		"labels of Kubernetes":                 {change: labelled(map[string]string{"app.kubernetes.io/name": strings.Repeat("n", 62) + "-x", "app.kubernetes.io/version": "7", "version": "8"})},
		"annotations":                          {change: annotatedAll(own)},
		"a status port of the pod's":           {change: annotated(keyStatusPort, "15033")},
		"TPROXY":                               {change: annotated("sidecar.istio.io/interceptionMode", "TPROXY")},
		"TPROXY of the mesh":                   {set: []string{"meshConfig.defaultConfig.interceptionMode=TPROXY"}},
		"resources":                            {change: annotatedAll(map[string]string{"sidecar.istio.io/proxyCPU": "100m", "sidecar.istio.io/proxyCPULimit": "1500m", "sidecar.istio.io/proxyMemoryLimit": "1Gi"})},
		"an interception mode":                 {change: annotated("sidecar.istio.io/interceptionMode", "REDIRECT")},
		"probes and metrics":                   {change: probed},
		"two containers, with init containers": {change: withInit(nil)},
		"HBONE":                                {change: annotated(keyConfig, `{"proxyMetadata": {"ISTIO_META_ENABLE_HBONE": "true"}}`)},
		"a mesh of its own":                    {operator: ownMesh},
		"a mesh of its own and annotations":    {operator: ownMesh, change: annotatedAll(own)},
		"tracing by Datadog":                   {set: []string{"values.global.proxy.tracer=datadog"}},
		"a provider of certificates":           {set: []string{"values.global.pilotCertProvider=k8s.io/signer"}},
		"istio-cni":                            {set: []string{byOthers}},
	}
	installed := map[string]*istio{}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			key := tc.operator + strings.Join(tc.set, " ")
			if installed[key] == nil {
				installed[key] = install(t, tc.operator, tc.set...)
			}
			i, pod := installed[key], application(running(tc.change))
			injected := i.inject(t, pod)
			c := comparison{injected: injected, container: proxyOf(t, injected)}
			c.want = environment(c.container, pod)
			c.got = i.compute(t, pod, c.container, 0)
			c.args(t)
			c.env(t)
			c.files(t)
			c.config(t)
			c.volumes(t)
		})
	}
}
