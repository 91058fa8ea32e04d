package istio

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/api/v1alpha1"
)

const (
	aMesh   = "trustDomain: example.org\ndefaultConfig: {discoveryAddress: 'istiod.istio-system.svc:15012'}\n"
	someMap = `{"global": {"pilotCertProvider": "istiod", "istioNamespace": "istio-system"}}`
)

func parsed(t *testing.T, mesh, values string) *Mesh {
	t.Helper()
	return ofRevision(t, "", mesh, values)
}

func ofRevision(t *testing.T, revision, mesh, values string) *Mesh {
	t.Helper()
	m, err := ReadMesh(ControlPlane{Revision: revision}, func(string, string) (*corev1.ConfigMap, error) {
		return &corev1.ConfigMap{Data: map[string]string{"mesh": mesh, "values": values}}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// aPod is beside a proxy in slot 0.
func aPod(change func(*corev1.Pod)) Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", Labels: map[string]string{"app": "cart"}, Annotations: map[string]string{}},
		Spec:       corev1.PodSpec{NodeName: "node-1", ServiceAccountName: "till", Containers: []corev1.Container{{Name: "app"}}},
		Status:     corev1.PodStatus{PodIP: "10.0.0.7", HostIP: "192.168.0.3"},
	}
	if change != nil {
		change(pod)
	}
	return Pod{Pod: pod}
}

func annotated(key, value string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Annotations[key] = value }
}

func computed(t *testing.T, m *Mesh, p Pod) (Proxy, map[string]string) {
	t.Helper()
	proxy, err := m.Proxy(p)
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{}
	for _, v := range proxy.Env {
		if _, isSet := env[v.Name]; isSet {
			t.Errorf("%s is set twice", v.Name)
		}
		env[v.Name] = v.Value
	}
	return proxy, env
}

func TestParse_badInput_errorNamesKeyAndValue(t *testing.T) {
	cases := map[string]struct{ mesh, values, want string }{
		"a mesh that is no YAML":             {"trustDomain: [", someMap, `key mesh is no MeshConfig in YAML: .*"trustDomain: ["`},
		"a mesh that is no map":              {"- a", someMap, `key mesh is no MeshConfig in YAML: .*"- a"`},
		"another kind of value":              {"trustDomain: [7]", someMap, `key mesh is no MeshConfig in YAML: .*TrustDomain.*"trustDomain: [7]"`},
		"a defaultConfig that is no map":     {"defaultConfig: x", someMap, `key mesh is no MeshConfig in YAML: .*DefaultConfig.*"defaultConfig: x"`},
		"proxyMetadata that is no map":       {"defaultConfig: {proxyMetadata: 3}", someMap, "key mesh: defaultConfig: proxyMetadata is 3, want a map"},
		"proxyMetadata without quotes":       {"defaultConfig: {proxyMetadata: {A: true}}", someMap, "key mesh: defaultConfig: proxyMetadata: A is true, want a string in quotes"},
		"a mesh in the other notation":       {"proxy_inbound_listen_port: 16006", someMap, "key mesh: field proxy_inbound_listen_port: write it as in JSON, without _"},
		"a field in the other notation":      {"defaultConfig: {status_port: 1}", someMap, "key mesh: defaultConfig: field status_port: write it as in JSON, without _"},
		"values that are no JSON":            {aMesh, "global: {}", `key values is not the injector's JSON: .*"global: {}"`},
		"values that are empty":              {aMesh, "", `key values is not the injector's JSON: .*""`},
		"another kind of value in JSON":      {aMesh, `{"global": {"network": 7}}`, `key values is not the injector's JSON: .*Network`},
		"an unknown provider":                {aMesh, `{"global": {"pilotCertProvider": "kubernetes"}}`, `key values: global.pilotCertProvider is "kubernetes", want istiod`},
		"a root certificate in no ConfigMap": {aMesh, `{"global": {"pilotCertProvider": "istiod"}, "pilot": {"env": {"ENABLE_CLUSTER_TRUST_BUNDLE_API": true}}}`, "ENABLE_CLUSTER_TRUST_BUNDLE_API is true"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := parse(tc.mesh, tc.values)
			wantError(t, err, tc.want)
		})
	}
}

// wantError wants the parts of a pattern in an error, in their order.
func wantError(t *testing.T, err error, pattern string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want %q", pattern)
	}
	rest := err.Error()
	for part := range strings.SplitSeq(pattern, ".*") {
		_, after, found := strings.Cut(rest, part)
		if !found {
			t.Fatalf("%q, want %q", err, pattern)
		}
		rest = after
	}
}

func TestProxy_badInput_errorNamesPlaceAndValue(t *testing.T) {
	cases := map[string]struct {
		mesh   string
		change func(*corev1.Pod)
		want   string
	}{
		"an annotation that is no YAML": {change: annotated(keyConfig, "statusPort: ["), want: `annotation proxy.istio.io/config is no ProxyConfig in YAML: .*"statusPort: ["`},
		"an annotation that is no map":  {change: annotated(keyConfig, "7"), want: `annotation proxy.istio.io/config is no ProxyConfig in YAML: .*"7"`},
		"proxyMetadata without quotes":  {change: annotated(keyConfig, "proxyMetadata: {A: 1}"), want: "annotation proxy.istio.io/config: proxyMetadata: A is 1, want a string in quotes"},
		"a status port that is no port": {change: annotated(keyConfig, "statusPort: many"), want: "statusPort is many .*proxy.istio.io/config.*, want a port"},
		"a status port 0":               {change: annotated(keyConfig, "statusPort: 0"), want: "statusPort is 0 .*want a port"},
		"an admin port that is no port": {mesh: "defaultConfig: {proxyAdminPort: 70000}", want: "proxyAdminPort is 70000 (key mesh: defaultConfig.*want a port"},
		"an annotation's port":          {change: annotated(keyStatusPort, "x"), want: "statusPort is x .*status.sidecar.istio.io/port.*want a port"},
		"listeners elsewhere":           {mesh: "proxyListenPort: 16001", want: "it listens on the ports 16001 (outbound) and 15006 (inbound): choose a profile"},
		"a host without an address":     {mesh: `defaultConfig: {proxyMetadata: {A: "$(HOST_IP)"}}`, change: func(pod *corev1.Pod) { pod.Status.HostIP = "" }, want: "$(HOST_IP), and the pod's status has no hostIP"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := parsed(t, cmp.Or(tc.mesh, aMesh), someMap).Proxy(aPod(tc.change))
			wantError(t, err, tc.want)
		})
	}
}

func TestProxy_DNSCapture_runsAlone(t *testing.T) {
	cases := map[string]struct {
		annotation string
		env        []Variable
		want       string
	}{
		"none":                    {},
		"on":                      {annotation: `proxyMetadata: {ISTIO_META_DNS_CAPTURE: "true"}`, want: "update.handover.reusePort: ISTIO_META_DNS_CAPTURE is true, and the DNS server's address localhost:15053 cannot be opened twice"},
		"another address":         {annotation: `proxyMetadata: {ISTIO_META_ENABLE_DNS_SERVER: "1", DNS_PROXY_ADDR: "localhost:53"}`, want: "update.handover.reusePort: ISTIO_META_ENABLE_DNS_SERVER is 1, and the DNS server's address localhost:53 cannot be opened twice"},
		"the profile switches it": {annotation: `proxyMetadata: {ISTIO_META_DNS_CAPTURE: "true"}`, env: []Variable{{"ISTIO_META_DNS_CAPTURE", "false"}}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			p := aPod(annotated(keyConfig, tc.annotation))
			p.Env = tc.env
			for p.Slot = range uint32(2) {
				p.Beside = false
				computed(t, parsed(t, aMesh, someMap), p)
				p.Beside = true
				if _, err := parsed(t, aMesh, someMap).Proxy(p); tc.want != "" {
					wantError(t, err, tc.want)
				} else if err != nil {
					t.Errorf("slot %d: %v", p.Slot, err)
				}
			}
		})
	}
}

// reserved are the ports of Istio's listeners in every pod, and the defaults of slot 0.
var reserved = []int32{15000, 15001, 15004, 15006, 15008, 15020, 15021, 15053, 15090}

func TestProxy_slots_shareNoPort(t *testing.T) {
	listening := func(ports ...int32) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			for _, n := range ports {
				pod.Spec.Containers[0].Ports = append(pod.Spec.Containers[0].Ports, corev1.ContainerPort{ContainerPort: n})
			}
		}
	}
	cases := map[string]struct {
		mesh         string
		network      v1alpha1.Network
		change       func(*corev1.Pod)
		first, other [2]int32 // status and admin port
		debug        string
	}{
		"the usual mesh":        {first: [2]int32{15020, 15000}, other: [2]int32{15320, 15300}, debug: "15304"},
		"the mesh's own ports":  {mesh: "defaultConfig: {statusPort: 15320, proxyAdminPort: 15300}", first: [2]int32{15320, 15300}, other: [2]int32{15321, 15301}, debug: "15304"},
		"ports in quotes":       {mesh: `defaultConfig: {statusPort: "15320"}`, first: [2]int32{15320, 15000}, other: [2]int32{15321, 15300}, debug: "15304"},
		"listeners of the mesh": {mesh: "proxyListenPort: \"15320\"\nproxyInboundListenPort: 15300", network: v1alpha1.Network{OutboundPort: 15320, InboundPort: 15300}, first: [2]int32{15020, 15000}, other: [2]int32{15321, 15301}, debug: "15304"},
		"a variable with a port": {
			mesh:  `defaultConfig: {proxyMetadata: {ENVOY_STATUS_PORT: "15304", ENVOY_PROMETHEUS_PORT: "15320", PROXY_XDS_DEBUG_VIA_AGENT_PORT: "15300"}}`,
			first: [2]int32{15020, 15000}, other: [2]int32{15321, 15301}, debug: "15305",
		},
		"containers' ports":     {change: listening(15320, 15321, 15304), first: [2]int32{15020, 15000}, other: [2]int32{15322, 15300}, debug: "15305"},
		"the pod's own ports":   {change: annotated(keyConfig, "proxyAdminPort: 15300"), first: [2]int32{15020, 15300}, other: [2]int32{15320, 15301}, debug: "15304"},
		"the pod's status port": {change: annotated(keyStatusPort, "15320"), first: [2]int32{15320, 15000}, other: [2]int32{15321, 15300}, debug: "15304"},
		"no status port":        {change: annotated(keyStatusPort, "0"), first: [2]int32{15020, 15000}, other: [2]int32{15320, 15300}, debug: "15304"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			m, p := parsed(t, tc.mesh, someMap), aPod(tc.change)
			p.Network = tc.network
			first, firstEnv := computed(t, m, p)
			p.Slot = 1
			other, otherEnv := computed(t, m, p)
			wantPorts(t, first, firstEnv, tc.first)
			wantPorts(t, other, otherEnv, tc.other)
			if got := otherEnv[debugPort]; got != tc.debug {
				t.Errorf("debug port %s, want %s", got, tc.debug)
			}
			wantPublic(t, first.StatusPort, first, other)
			if slices.Contains(reserved, other.StatusPort) || slices.Contains(reserved, other.AdminPort) {
				t.Errorf("%d or %d is a port of Istio's", other.StatusPort, other.AdminPort)
			}
			for _, env := range []map[string]string{firstEnv, otherEnv} {
				delete(env, debugPort)
				delete(env, "PROXY_CONFIG")
			}
			if !maps.Equal(firstEnv, otherEnv) || !maps.Equal(first.Files, other.Files) || !slices.Equal(first.Args, other.Args) {
				t.Errorf("the slots differ in more than ports:\n%+v\n%+v", first, other)
			}
		})
	}
}

// wantPublic wants others to know proxies by one status port.
func wantPublic(t *testing.T, want int32, proxies ...Proxy) {
	t.Helper()
	for _, p := range proxies {
		if p.PublicPort != want {
			t.Errorf("others know the status port %d, want %d", p.PublicPort, want)
		}
	}
}

// wantPorts wants a status and an admin port, where pilot-agent reads them: in PROXY_CONFIG, and no other ones in an annotation of its file.
func wantPorts(t *testing.T, proxy Proxy, env map[string]string, want [2]int32) {
	t.Helper()
	if got := [2]int32{proxy.StatusPort, proxy.AdminPort}; got != want || got != configured(t, env) {
		t.Errorf("%v and in PROXY_CONFIG %v, want %v", got, configured(t, env), want)
	}
	file := proxy.Files["annotations"]
	if strings.Contains(file, keyConfig) || strings.Contains(file, keyStatusPort) {
		t.Errorf("an annotation changes the ports: %s", file)
	}
}

func configured(t *testing.T, env map[string]string) [2]int32 {
	t.Helper()
	var config struct{ StatusPort, ProxyAdminPort int32 }
	if err := json.Unmarshal([]byte(env["PROXY_CONFIG"]), &config); err != nil {
		t.Fatal(err)
	}
	return [2]int32{config.StatusPort, config.ProxyAdminPort}
}
