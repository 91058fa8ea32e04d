package commands

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"istio-pod-network-controller/internal/cmdline"
)

const (
	meshWorkload = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: cart, namespace: shop}
spec: {template: {metadata: {annotations: {pod-network-controller.istio.io/sidecar: mesh, sidecar.istio.io/userVolume: "[]"}}, spec: {containers: [{name: app}]}}}
`
	meshProfile = `
apiVersion: pod-network-controller.istio.io/v1alpha1
kind: ProxyProfile
metadata: {name: mesh}
spec: {image: "localhost/proxyv2:1", handover: reuse-port, istio: {revision: 1-31}, env: [{name: OWN, value: mine}]}
`
	meshConfigMap = `
apiVersion: v1
kind: ConfigMap
metadata: {name: istio-1-31, namespace: istio-system}
data: {mesh: "trustDomain: example.org"}
`
	meshValues = `
apiVersion: v1
kind: ConfigMap
metadata: {name: istio-sidecar-injector-1-31, namespace: istio-system}
data: {values: '{"global": {"pilotCertProvider": "istiod"}}'}
`
)

// inCluster returns an API server's answers: these objects, by their paths.
func inCluster(t *testing.T, byPath map[string]string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for path, text := range byPath {
		raw, err := yaml.YAMLToJSON([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		out[path] = string(raw)
	}
	return out
}

const (
	pathProfile = "/apis/pod-network-controller.istio.io/v1alpha1/proxyprofiles/mesh"
	pathMesh    = "/api/v1/namespaces/istio-system/configmaps/istio-1-31"
	pathValues  = "/api/v1/namespaces/istio-system/configmaps/istio-sidecar-injector-1-31"
)

func TestExplainProxy_istio_saysWhatWouldStart(t *testing.T) {
	cluster := apiServer(t, http.StatusNotFound, inCluster(t, map[string]string{pathProfile: meshProfile, pathMesh: meshConfigMap, pathValues: meshValues}))
	var first *explainedProxy
	for from, c := range map[string]struct {
		manifests string
		args      []string
	}{
		"the manifests": {meshWorkload + "---" + meshProfile + "---" + meshConfigMap + "---" + meshValues, nil},
		"the cluster":   {meshWorkload, []string{"--kubeconfig", cluster}},
		"both":          {meshWorkload + "---" + meshProfile + "---" + meshValues, []string{"--kubeconfig", cluster}},
	} {
		code, all, errOut := answers(t, c.manifests, c.args...)
		if code != 0 || len(all) != 1 || all[0].Proxy == nil {
			t.Fatalf("%s: code %d, %+v, %s", from, code, all, errOut)
		}
		got := all[0].Proxy
		if first == nil {
			first = got
		}
		if diff := cmp.Diff(first, got); diff != "" {
			t.Errorf("%s: another answer:\n%s", from, diff)
		}
	}
	if first.Image != "localhost/proxyv2:1" || first.Unknown != "" || !slices.Equal(first.Command[:4], []string{"/usr/local/bin/pilot-agent", "proxy", "sidecar", "--domain"}) {
		t.Errorf("%+v", first)
	}
	for _, want := range []string{
		"OWN=mine", "POD_NAME=cart-SUFFIX", "INSTANCE_IP=POD_IP", "SERVICE_ACCOUNT=default", "TRUST_DOMAIN=example.org", "CA_ADDR=istiod.istio-system.svc:15012",
		"ISTIO_META_OWNER=kubernetes://apis/apps/v1/namespaces/shop/deployments/cart", `PROXY_CONFIG={"proxyAdminPort":15000,"statusPort":15020}`,
	} {
		if !slices.Contains(first.Env, want) {
			t.Errorf("no %s in %q", want, first.Env)
		}
	}
	for i, want := range []string{"annotation sidecar.istio.io/userVolume=[] has no effect", "objects of kind ProxyConfig"} {
		if len(first.NotHonoured) != 2 || !strings.HasPrefix(first.NotHonoured[i], want) {
			t.Errorf("not honoured %q, want %q", first.NotHonoured, want)
		}
	}
	_, out, _ := call(t, meshWorkload, "explain", "-f", "-", "--kubeconfig", cluster)
	for _, want := range []string{
		"  proxy of ProxyProfile mesh: localhost/proxyv2:1\n    runs /usr/local/bin/pilot-agent proxy sidecar --domain shop.svc.cluster.local ",
		"\n    not honoured: annotation sidecar.istio.io/userVolume=[] has no effect: ", "\n    INSTANCE_IP=POD_IP\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

func TestExplainProxy_otherProfile_isShown(t *testing.T) {
	plain := strings.Replace(meshProfile, "handover: reuse-port, istio: {revision: 1-31}", "command: [envoy], args: [-c, x]", 1)
	_, all, _ := answers(t, meshWorkload+"---"+plain)
	want := &explainedProxy{Profile: "mesh", Image: "localhost/proxyv2:1", Command: []string{"envoy", "-c", "x"}, Env: []string{"OWN=mine"}}
	if diff := cmp.Diff(want, all[0].Proxy); diff != "" {
		t.Error(diff)
	}
}

// What cannot be read is no fault of the manifest.
func TestExplainProxy_unread_saysWhy(t *testing.T) {
	none, all := http.StatusNotFound, meshWorkload+"---"+meshProfile+"---"+meshConfigMap+"---"+meshValues
	for name, c := range map[string]struct {
		manifests string
		status    int
		cluster   map[string]string
		want      string
	}{
		"no cluster":               {manifests: meshWorkload, want: pathProfile + " is not among the manifests, and cannot be read: no cluster to ask"},
		"no right to the profile":  {manifests: meshWorkload, status: http.StatusForbidden, want: pathProfile + " is not among the manifests, and cannot be read: "},
		"no such profile":          {manifests: meshWorkload, status: none, want: `neither the manifests nor the cluster have a ProxyProfile "mesh"`},
		"no right to a ConfigMap":  {manifests: meshWorkload, status: http.StatusForbidden, cluster: map[string]string{pathProfile: meshProfile}, want: pathMesh + " is not among the manifests, and cannot be read: "},
		"no control plane":         {manifests: meshWorkload + "---" + meshProfile, status: none, want: `there is no ConfigMap istio-system/istio-1-31: Istio's control plane with revision "1-31" is missing`},
		"a mesh that is no YAML":   {manifests: strings.Replace(all, "trustDomain: example.org", "a: [", 1), want: "key mesh is no MeshConfig in YAML"},
		"a profile of shared ones": {manifests: strings.Replace(all, "spec: {image", "spec: {mode: shared, image", 1), want: "it is shared by the pods of a node"},
	} {
		t.Run(name, func(t *testing.T) {
			var args []string
			if c.status != 0 {
				args = []string{"--kubeconfig", apiServer(t, c.status, inCluster(t, c.cluster))}
			}
			code, all, errOut := answers(t, c.manifests, args...)
			if code != 0 || len(all) != 1 || !strings.Contains(all[0].Proxy.Unknown, c.want) {
				t.Errorf("code %d, %+v, %s", code, all[0].Proxy, errOut)
			}
		})
	}
}

func TestExplainProxy_wrongSetting_isInvalid(t *testing.T) {
	all := meshWorkload + "---" + meshProfile + "---" + meshConfigMap + "---" + meshValues
	for setting, want := range map[string]string{
		`"statusPort: ["`: `ProxyProfile "mesh": annotation proxy.istio.io/config is no ProxyConfig in YAML`,
		`'{proxyMetadata: {ISTIO_META_DNS_CAPTURE: "true"}}'`: "choose a profile with handover none",
	} {
		code, all, _ := answers(t, strings.Replace(all, `userVolume: "[]"`, `userVolume: "[]", proxy.istio.io/config: `+setting, 1))
		if code != cmdline.ExitError || len(all) != 1 || !strings.Contains(all[0].Error, want) {
			t.Errorf("%s: code %d, %+v", setting, code, all)
		}
	}
}
