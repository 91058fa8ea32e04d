package commands

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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
spec: {istio: {image: "localhost/proxyv2:1", revision: 1-31, env: [{name: OWN, value: mine}]}}
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
	meshObject = `
apiVersion: networking.istio.io/v1beta1
kind: ProxyConfig
metadata: {name: all, namespace: shop}
spec: {concurrency: 2, image: {imageType: debug}}
`
)

func TestExplainProxy_istio_saysWhatWouldStart(t *testing.T) {
	mesh := meshWorkload + "---" + meshProfile + "---" + meshConfigMap + "---" + meshValues + "---" + meshObject
	code, all, errOut := answers(t, mesh)
	if code != 0 || len(all) != 1 || all[0].Proxy == nil {
		t.Fatalf("code %d, %+v, %s", code, all, errOut)
	}
	first := all[0].Proxy
	if first.Image != "localhost/proxyv2:1" || first.Unknown != "" || !slices.Equal(first.Command[:4], []string{"/usr/local/bin/pilot-agent", "proxy", "sidecar", "--domain"}) {
		t.Errorf("%+v", first)
	}
	for _, want := range []string{
		"OWN=mine", "POD_NAME=cart-SUFFIX", "INSTANCE_IP=POD_IP", "SERVICE_ACCOUNT=default", "TRUST_DOMAIN=example.org", "CA_ADDR=istiod.istio-system.svc:15012",
		"ISTIO_META_OWNER=kubernetes://apis/apps/v1/namespaces/shop/deployments/cart", `PROXY_CONFIG={"concurrency":2,"proxyAdminPort":15000,"statusPort":15020}`,
	} {
		if !slices.Contains(first.Env, want) {
			t.Errorf("no %s in %q", want, first.Env)
		}
	}
	for i, want := range []string{"annotation sidecar.istio.io/userVolume=[] has no effect", "image.imageType of ProxyConfig shop/all has no effect"} {
		if len(first.NotHonoured) != 2 || !strings.HasPrefix(first.NotHonoured[i], want) {
			t.Errorf("not honoured %q, want %q", first.NotHonoured, want)
		}
	}
	_, out, _ := call(t, mesh, "explain", "-f", "-")
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
	plain := strings.NewReplacer("istio:", "container:", "revision: 1-31", "command: [envoy], args: [-c, x]").Replace(meshProfile)
	_, all, _ := answers(t, meshWorkload+"---"+plain)
	want := &explainedProxy{Profile: "mesh", Image: "localhost/proxyv2:1", Command: []string{"envoy", "-c", "x"}, Env: []string{"OWN=mine"}}
	if diff := cmp.Diff(want, all[0].Proxy); diff != "" {
		t.Error(diff)
	}
}

// What cannot be read is no fault of the manifest.
func TestExplainProxy_unread_saysWhy(t *testing.T) {
	all := meshWorkload + "---" + meshProfile + "---" + meshConfigMap + "---" + meshValues
	for name, c := range map[string]struct{ manifests, want string }{
		"no profile":                    {meshWorkload, "kubectl get proxyprofile mesh -o yaml"},
		"no ConfigMap":                  {meshWorkload + "---" + meshProfile, "read ConfigMap istio-system/istio-1-31: it is not among the manifests: add what kubectl -n istio-system get configmap istio-1-31 -o yaml prints"},
		"a mesh that is no YAML":        {strings.Replace(all, "trustDomain: example.org", "a: [", 1), "key mesh is no MeshConfig in YAML"},
		"a profile of shared ones":      {strings.Replace(all, "spec: {istio", "spec: {shared: {}, other", 1), "it is shared by the pods of a node"},
		"a profile of an earlier build": {strings.Replace(all, "spec: {istio", "spec: {other", 1), "none of container, istio and shared"},
	} {
		t.Run(name, func(t *testing.T) {
			code, all, errOut := answers(t, c.manifests)
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
		`'{proxyMetadata: {ISTIO_META_DNS_CAPTURE: "true"}}'`: "choose a profile with update.handover.none",
	} {
		code, all, _ := answers(t, strings.Replace(all, `userVolume: "[]"`, `userVolume: "[]", proxy.istio.io/config: `+setting, 1))
		if code != cmdline.ExitError || len(all) != 1 || !strings.Contains(all[0].Error, want) {
			t.Errorf("%s: code %d, %+v", setting, code, all)
		}
	}
}
