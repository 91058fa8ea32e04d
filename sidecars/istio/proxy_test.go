package istio

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/api/v1alpha1"
)

func TestProxy_usualMesh_isAsInIstiosTemplate(t *testing.T) {
	p := aPod(nil)
	cpu, memory := resource.MustParse("1500m"), resource.MustParse("1Gi")
	p.Resources = v1alpha1.Resources{CPULimit: &cpu, MemoryLimit: &memory}
	proxy, env := computed(t, parsed(t, aMesh, someMap), p)
	wantArgs := []string{"proxy", "sidecar", "--domain", "shop.svc.cluster.local", "--proxyLogLevel=", "--proxyComponentLogLevel=", "--log_output_level="}
	if !slices.Equal(proxy.Command, []string{"/usr/local/bin/pilot-agent"}) || !slices.Equal(proxy.Args, wantArgs) {
		t.Errorf("%q %q", proxy.Command, proxy.Args)
	}
	want := map[string]string{
		"PILOT_CERT_PROVIDER": "istiod", "CA_ADDR": "istiod.istio-system.svc:15012", "TRUST_DOMAIN": "example.org",
		"POD_NAME": "cart", "POD_NAMESPACE": "shop", "INSTANCE_IP": "10.0.0.7", "HOST_IP": "192.168.0.3", "SERVICE_ACCOUNT": "till",
		"ISTIO_CPU_LIMIT": "2", "GOMAXPROCS": "2", "GOMEMLIMIT": "1073741824", "EXIT_ON_ZERO_ACTIVE_CONNECTIONS": "true",
		"ISTIO_META_POD_PORTS": "[]", "ISTIO_META_APP_CONTAINERS": "app", "ISTIO_META_CLUSTER_ID": "Kubernetes", "ISTIO_META_NODE_NAME": "node-1",
		"ISTIO_META_MESH_ID": "example.org", "ISTIO_META_WORKLOAD_NAME": "cart", "ISTIO_META_OWNER": "kubernetes://apis/v1/namespaces/shop/pods/cart",
		"ISTIO_META_INTERCEPTION_MODE": "REDIRECT",
		"PROXY_CONFIG":                 `{"discoveryAddress":"istiod.istio-system.svc:15012","proxyAdminPort":15000,"statusPort":15020}`,
	}
	if !maps.Equal(env, want) {
		t.Errorf("environment\n%v, want\n%v", env, want)
	}
	if proxy.Audience != "istio-ca" || proxy.TokenSeconds != 43200 || proxy.RootCert != "istio-ca-root-cert" || proxy.NotHonoured != nil {
		t.Errorf("%+v", proxy)
	}
	if got := proxy.Files["annotations"]; got != `istio.io/rev="default"` {
		t.Errorf("annotations %s", got)
	}
	const labels = `app="cart"
security.istio.io/tlsMode="istio"
service.istio.io/canonical-name="cart"
service.istio.io/canonical-revision="latest"`
	if got := proxy.Files["labels"]; got != labels {
		t.Errorf("labels\n%s, want\n%s", got, labels)
	}
}

func TestProxy_settings_takeEffect(t *testing.T) {
	const metadata = `proxyMetadata: {FROM: "mesh $(POD_NAME) $$(POD_NAME) $(NOBODY) $5", BOTH: mesh, CA_ADDR: "other:1"}`
	values := func(global string) string { return `{"global": {"pilotCertProvider": "istiod", ` + global + `}}` }
	cases := map[string]struct {
		mesh, values string
		change       func(*corev1.Pod)
		env          []Variable
		transparent  bool
		want         map[string]string
	}{
		"a revision":                          {values: `{"revision": "canary", "global": {"pilotCertProvider": "istiod"}}`, want: map[string]string{"CA_ADDR": "istiod-canary.istio-system.svc:15012"}},
		"an authority of its own":             {values: values(`"caAddress": "ca:443"`), want: map[string]string{"CA_ADDR": "ca:443"}},
		"a mesh ID":                           {values: values(`"meshID": "m"`), want: map[string]string{"ISTIO_META_MESH_ID": "m", "TRUST_DOMAIN": "example.org"}},
		"no trust domain":                     {mesh: "{}", want: map[string]string{"ISTIO_META_MESH_ID": "cluster.local", "TRUST_DOMAIN": "cluster.local"}},
		"a network":                           {values: values(`"network": "n"`), want: map[string]string{"ISTIO_META_NETWORK": "n"}},
		"a network of the pod's":              {values: values(`"network": "n"`), change: labelled(keyNetwork, "own"), want: map[string]string{"ISTIO_META_NETWORK": "own"}},
		"a cluster":                           {values: values(`"multiCluster": {"clusterName": "c"}`), want: map[string]string{"ISTIO_META_CLUSTER_ID": "c"}},
		"TPROXY":                              {mesh: "defaultConfig: {interceptionMode: TPROXY}", want: map[string]string{"ISTIO_META_INTERCEPTION_MODE": "REDIRECT"}},
		"TPROXY of the profile":               {transparent: true, want: map[string]string{"ISTIO_META_INTERCEPTION_MODE": "TPROXY"}},
		"no address of the host's, nor a use": {change: func(pod *corev1.Pod) { pod.Status.HostIP = "" }, want: map[string]string{"HOST_IP": ""}},
		"a name of the workload":              {change: labelled("service.istio.io/workload-name", "w"), want: map[string]string{"ISTIO_META_WORKLOAD_NAME": "w", "ISTIO_META_OWNER": "kubernetes://apis/v1/namespaces/shop/pods/cart"}},
		"FIPS 140-3":                          {values: `{"global": {"pilotCertProvider": "istiod"}, "pilot": {"env": {"COMPLIANCE_POLICY": "fips-140-3"}}}`, want: map[string]string{"COMPLIANCE_POLICY": "fips-140-3", "GODEBUG": "fips140=only"}},
		"FIPS 140-2":                          {values: `{"global": {"pilotCertProvider": "istiod"}, "pilot": {"env": {"COMPLIANCE_POLICY": "fips-140-2"}}}`, want: map[string]string{"COMPLIANCE_POLICY": "fips-140-2", "GODEBUG": ""}},
		"the mesh's metadata":                 {mesh: "defaultConfig: {" + metadata + "}", want: map[string]string{"FROM": "mesh cart $(POD_NAME) $(NOBODY) $5", "BOTH": "mesh", "CA_ADDR": "other:1"}},
		"the pod's metadata over the mesh's":  {mesh: "defaultConfig: {" + metadata + "}", change: annotated(keyConfig, `proxyMetadata: {BOTH: pod}`), want: map[string]string{"BOTH": "pod", "CA_ADDR": "other:1"}},
		"the profile's variables over all":    {mesh: "defaultConfig: {" + metadata + "}", env: []Variable{{"BOTH", "$(POD_NAME)"}, {"TRUST_DOMAIN", "t"}}, want: map[string]string{"BOTH": "$(POD_NAME)", "TRUST_DOMAIN": "t"}},
		"the host's address in configuration": {mesh: `defaultConfig: {tracing: {zipkin: {address: "$(HOST_IP):9411"}}}`, want: map[string]string{"PROXY_CONFIG": `{"proxyAdminPort":15000,"statusPort":15020,"tracing":{"zipkin":{"address":"192.168.0.3:9411"}}}`}},
		"the pod's fields over the mesh's": {
			mesh: "defaultConfig: {concurrency: 3, tracing: {sampling: 1, zipkin: {address: a}}, runtimeValues: {a: b}, proxyHeaders: {server: {value: s}, requestId: {disabled: true}}}", change: annotated(keyConfig, "{concurrency: 0, tracing: {sampling: 2}, runtimeValues: null, proxyHeaders: {server: {value: t}}}"),
			want: map[string]string{"PROXY_CONFIG": `{"concurrency":0,"proxyAdminPort":15000,"proxyHeaders":{"requestId":{"disabled":true},"server":{"value":"t"}},"runtimeValues":{"a":"b"},"statusPort":15020,"tracing":{"sampling":2}}`},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			m, p := parsed(t, cmp.Or(tc.mesh, aMesh), cmp.Or(tc.values, someMap)), aPod(tc.change)
			p.Env, p.Transparent = tc.env, tc.transparent
			_, got := computed(t, m, p)
			for name, value := range tc.want {
				if got[name] != value {
					t.Errorf("%s is %q, want %q", name, got[name], value)
				}
			}
			if _, again := computed(t, m, aPod(nil)); tc.change != nil && maps.Equal(again, got) {
				t.Error("another pod has the same: the mesh has changed")
			}
		})
	}
}

func labelled(key, value string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Labels[key] = value }
}

func TestProxy_argumentsAndSecrets_areTheMeshsAndThePods(t *testing.T) {
	const values = `{"global": {"pilotCertProvider": "istiod", "trustBundleName": "roots", "sds": {"token": {"aud": "us"}}, "logAsJson": true,
		"logging": {"level": "all:info"}, "sts": {"servicePort": 15463},
		"proxy": {"clusterDomain": "c.example", "logLevel": "warning", "componentLogLevel": "misc:error", "outlierLogPath": "/dev/stdout"}}}`
	p := aPod(annotated("sidecar.istio.io/logLevel", "debug"))
	proxy, _ := computed(t, ofRevision(t, "canary", aMesh, values), p)
	want := []string{
		"proxy", "sidecar", "--domain", "shop.svc.c.example", "--proxyLogLevel=debug", "--proxyComponentLogLevel=misc:error", "--log_output_level=all:info",
		"--stsPort=15463", "--log_as_json", "--outlierLogPath=/dev/stdout",
	}
	if !slices.Equal(proxy.Args, want) {
		t.Errorf("%q, want %q", proxy.Args, want)
	}
	if proxy.Audience != "us" || proxy.RootCert != "roots" {
		t.Errorf("%+v", proxy)
	}
	if got := proxy.Files["annotations"]; got != "istio.io/rev=\"canary\"\nsidecar.istio.io/logLevel=\"debug\"" {
		t.Errorf("annotations %s", got)
	}
	if proxy, _ := computed(t, parsed(t, aMesh, `{"global": {"pilotCertProvider": "custom"}}`), p); proxy.RootCert != "" {
		t.Errorf("the root certificate is mounted from %s", proxy.RootCert)
	}
}

func TestProxy_labels_areTheInjectors(t *testing.T) {
	cases := map[string]struct {
		own, want map[string]string
	}{
		"none":       {map[string]string{}, map[string]string{"service.istio.io/canonical-name": "cart", "service.istio.io/canonical-revision": "latest", "security.istio.io/tlsMode": "istio"}},
		"Kubernetes": {map[string]string{"app": "a", "app.kubernetes.io/name": "n", "version": "1", "app.kubernetes.io/version": "2"}, map[string]string{"service.istio.io/canonical-name": "n", "service.istio.io/canonical-revision": "2"}},
		"the pod's": {
			map[string]string{"service.istio.io/canonical-name": "c", "service.istio.io/canonical-revision": "r", "security.istio.io/tlsMode": "disabled", keyTunnel: "t", keyNetwork: "o"},
			map[string]string{"service.istio.io/canonical-name": "c", "service.istio.io/canonical-revision": "r", "security.istio.io/tlsMode": "disabled", keyTunnel: "t", keyNetwork: "o"},
		},
		"too long a name":     {map[string]string{"app.kubernetes.io/name": strings.Repeat("n", 62) + "-x"}, map[string]string{"service.istio.io/canonical-name": strings.Repeat("n", 62)}},
		"of the mesh's setup": {nil, map[string]string{keyTunnel: "http", keyNetwork: "n"}},
	}
	m := parsed(t, `defaultConfig: {proxyMetadata: {ISTIO_META_ENABLE_HBONE: "true"}}`, `{"global": {"pilotCertProvider": "istiod", "network": "n"}}`)
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			proxy, _ := computed(t, m, aPod(func(pod *corev1.Pod) { pod.Labels = tc.own }))
			for key, value := range tc.want {
				if line := key + `="` + value + `"`; !slices.Contains(strings.Split(proxy.Files["labels"], "\n"), line) {
					t.Errorf("no %s in\n%s", line, proxy.Files["labels"])
				}
			}
		})
	}
}

// The kubelet quotes values as Go does.
func TestDownward_hostileValue_isOneLine(t *testing.T) {
	if got := downward(map[string]string{"b": "1", "a": "x\"\nb=\"2"}); got != "a=\"x\\\"\\nb=\\\"2\"\nb=\"1\"" {
		t.Error(got)
	}
}

func TestWorkloadOf_owners_areGuessedAsByIstio(t *testing.T) {
	yes, no := true, false
	cases := map[string]struct {
		owner  metav1.OwnerReference
		labels map[string]string
		fixed  bool // the pod's name is not generated
		want   workload
	}{
		"nobody":                     {fixed: true, want: workload{"v1", "Pod", "cart"}},
		"a pod by its name":          {fixed: true, owner: metav1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", Controller: &yes}, want: workload{"v1", "Pod", "cart"}},
		"an owner, no controller":    {owner: metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: "n", Controller: &no}, want: workload{"v1", "Pod", "cart"}},
		"a Deployment":               {owner: metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "cart-5d8f", Controller: &yes}, labels: map[string]string{"pod-template-hash": "5d8f"}, want: workload{"apps/v1", "Deployment", "cart"}},
		"a ReplicaSet":               {owner: metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "cart-5d8f", Controller: &yes}, labels: map[string]string{"pod-template-hash": "other"}, want: workload{"apps/v1", "ReplicaSet", "cart-5d8f"}},
		"an Argo Rollout":            {owner: metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "cart-5d8f", Controller: &yes}, labels: map[string]string{"rollouts-pod-template-hash": "5d8f"}, want: workload{"v1alpha1", "Rollout", "cart"}},
		"a DeploymentConfig":         {owner: metav1.OwnerReference{APIVersion: "v1", Kind: "ReplicationController", Name: "cart-1", Controller: &yes}, labels: map[string]string{"deploymentconfig": "cart"}, want: workload{"v1", "DeploymentConfig", "cart"}},
		"a ReplicationController":    {owner: metav1.OwnerReference{APIVersion: "v1", Kind: "ReplicationController", Name: "cart", Controller: &yes}, want: workload{"v1", "ReplicationController", "cart"}},
		"a CronJob":                  {owner: metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Name: "night-28731234", Controller: &yes}, want: workload{"batch/v1", "CronJob", "night"}},
		"a CronJob of another clock": {owner: metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Name: "night-1732600000", Controller: &yes}, want: workload{"batch/v1", "CronJob", "night"}},
		"a Job with a short number":  {owner: metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Name: "night-1", Controller: &yes}, want: workload{"batch/v1", "Job", "night-1"}},
		"a StatefulSet":              {owner: metav1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", Controller: &yes}, want: workload{"apps/v1", "StatefulSet", "db"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "cart", GenerateName: "cart-", Labels: tc.labels, OwnerReferences: []metav1.OwnerReference{tc.owner}}}
			if tc.fixed {
				pod.GenerateName = ""
			}
			if got := workloadOf(pod); got != tc.want {
				t.Errorf("%+v, want %+v", got, tc.want)
			}
		})
	}
}
