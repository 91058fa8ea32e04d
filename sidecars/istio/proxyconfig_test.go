package istio

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// objects are ProxyConfigs, the younger the further back.
func objects(t *testing.T, specs ...string) (out []ProxyConfig) {
	t.Helper()
	for i, text := range specs {
		namespace, spec, _ := strings.Cut(text, " ")
		var c ProxyConfig
		manifest := fmt.Sprintf("metadata: {namespace: %s, name: c%d, creationTimestamp: \"2026-01-01T00:00:%02dZ\"}\nspec: %s", namespace, i, i, spec)
		if err := yaml.UnmarshalStrict([]byte(manifest), &c); err != nil {
			t.Fatal(err)
		}
		out = append(out, c)
	}
	slices.Reverse(out) // the API server orders by name
	return out
}

// withObjects is a mesh with ProxyConfigs.
func withObjects(t *testing.T, all []ProxyConfig) *Mesh {
	t.Helper()
	m, err := Sources{Mesh: aMesh + "rootNamespace: roots\ndefaultConfig: {concurrency: 1, proxyMetadata: {A: mesh}}\n", Values: someMap, ProxyConfigs: all}.Parse()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// The nearer an object is to the pod, the more it counts; of one layer the oldest counts alone. The pod's annotation has the last word with pilot-agent, though not
// on the container's variables.
func TestProxy_proxyConfigs_nearestCounts(t *testing.T) {
	const root, other, namespace, of = "roots {concurrency: 2, environmentVariables: {A: root}}", "elsewhere {concurrency: 9}", "shop {concurrency: 3, environmentVariables: {A: namespace}}",
		"shop {selector: {matchLabels: {app: cart}}, concurrency: 4, environmentVariables: {A: pod}}"
	own := annotated(keyConfig, "concurrency: 5\nproxyMetadata: {A: annotation}")
	for name, tc := range map[string]struct {
		objects     []string
		change      func(*corev1.Pod)
		concurrency float64
		variable    string
	}{
		"none":                          {concurrency: 1, variable: "mesh"},
		"of another namespace":          {objects: []string{other}, concurrency: 1, variable: "mesh"},
		"of the mesh":                   {objects: []string{other, root}, concurrency: 2, variable: "root"},
		"of the namespace":              {objects: []string{namespace, root}, concurrency: 3, variable: "namespace"},
		"the oldest":                    {objects: []string{namespace, "shop {concurrency: 7}"}, concurrency: 3, variable: "namespace"},
		"of other pods":                 {objects: []string{root, "shop {selector: {matchLabels: {app: till}}, concurrency: 7}"}, concurrency: 2, variable: "root"},
		"of the pod":                    {objects: []string{namespace, of, root}, concurrency: 4, variable: "pod"},
		"an annotation and the mesh's":  {objects: []string{root}, change: own, concurrency: 5, variable: "annotation"},
		"an annotation and the pod's":   {objects: []string{of}, change: own, concurrency: 5, variable: "pod"},
		"a pod of the root's namespace": {objects: []string{root}, change: func(pod *corev1.Pod) { pod.Namespace = "roots" }, concurrency: 2, variable: "root"},
		"all workers":                   {objects: []string{"shop {concurrency: 0}"}, concurrency: 0, variable: "mesh"},
	} {
		t.Run(name, func(t *testing.T) {
			_, env := computed(t, withObjects(t, objects(t, tc.objects...)), aPod(tc.change))
			var config map[string]any
			if err := json.Unmarshal([]byte(env["PROXY_CONFIG"]), &config); err != nil {
				t.Fatal(err)
			}
			if config["concurrency"] != tc.concurrency || env["A"] != tc.variable {
				t.Errorf("concurrency %v, A=%s", config["concurrency"], env["A"])
			}
		})
	}
}

func TestProxy_proxyConfigOfImage_isNotHonoured(t *testing.T) {
	proxy, _ := computed(t, withObjects(t, objects(t, "shop {image: {imageType: distroless}}")), aPod(nil))
	if want := []string{"image.imageType of ProxyConfig shop/c0 has no effect: the image is the profile's"}; !slices.Equal(proxy.NotHonoured, want) {
		t.Errorf("%q, want %q", proxy.NotHonoured, want)
	}
}

func TestProxy_hostileProxyConfig_isRefused(t *testing.T) {
	for spec, want := range map[string]string{
		`shop {environmentVariables: {"TRUST_DOMAIN=evil": x}}`: `"TRUST_DOMAIN=evil" is no name of a variable`,
		`shop {environmentVariables: {A: "x\0B=evil"}}`:         "variable A has a NUL character",
	} {
		_, err := withObjects(t, objects(t, spec)).Proxy(aPod(nil))
		wantError(t, err, want)
	}
}
