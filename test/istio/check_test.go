package istio

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"

	"istio-pod-network-controller/diagnostics/check"
	"istio-pod-network-controller/internal/intent"
)

// checked asks check, before the agent's installation, about a cluster with an installation of Istio and running pods.
func checked(t *testing.T, istios []*istio, pods ...*corev1.Pod) map[string]check.Result {
	t.Helper()
	var objects []runtime.Object
	for _, i := range istios {
		for _, o := range i.objects {
			raw, err := json.Marshal(o.Object)
			if err != nil {
				t.Fatal(err)
			}
			switch object, _, err := scheme.Codecs.UniversalDeserializer().Decode(raw, nil, nil); {
			case err != nil && !runtime.IsNotRegisteredError(err):
				t.Fatal(err)
			case err == nil && (o.GetKind() == "ConfigMap" || o.GetKind() == "Deployment" || o.GetKind() == "DaemonSet"):
				objects = append(objects, object)
			}
		}
	}
	for _, pod := range pods {
		pod.Status.Phase = corev1.PodRunning
		objects = append(objects, pod)
	}
	client := fake.NewClientset(objects...)
	if d, ok := client.Discovery().(*fakediscovery.FakeDiscovery); ok {
		d.FakedServerVersion = &version.Info{GitVersion: "v1.36.3"}
	}
	g := check.Gatherer{Client: client, Intent: func([]string) (intent.Config, error) { return intent.Config{}, nil }}
	out := map[string]check.Result{}
	for _, r := range check.Run(g.Gather(t.Context()), true) {
		out[r.Check] = r
	}
	return out
}

// What would fail after a migration, found before it.
func TestCheck_beforeAMigration_namesWhatWouldFail(t *testing.T) {
	cases := map[string]struct {
		set    []string
		change func(*corev1.Pod)
		check  string
		level  check.Level
		want   string
	}{
		"istio-init":                                  {check: "istio-init", level: check.Warn, want: "shop/cart"},
		"the injector adds it":                        {check: "injector", level: check.Warn, want: "pilot.cni.enabled is false in ConfigMap istio-sidecar-injector"},
		"the injector of a revision":                  {set: []string{"revision=canary"}, check: "injector", level: check.Warn, want: "ConfigMap istio-sidecar-injector-canary"},
		"the injector leaves it out":                  {set: []string{byOthers}, check: "injector", level: check.OK},
		"istio-cni by istioctl":                       {set: []string{"components.cni.enabled=true"}, check: "injector", level: check.Warn, want: "was not installed by Helm"},
		"a regular proxy, an init container":          {change: regular(withInit(nil)), check: "init-containers", level: check.Warn, want: "shop/cart (migrate)"},
		"a regular proxy, an init container as 1337":  {change: regular(withInit(ids(1337, -1))), check: "init-containers", level: check.OK},
		"a native proxy, an init container":           {change: nativeProxy(withInit(nil)), check: "init-containers", level: check.OK},
		"istio-cni, a regular proxy, init containers": {set: []string{byOthers}, change: regular(withInit(nil)), check: "init-containers", level: check.OK},
		"the application as 1337, by istio-init":      {change: appAs(1337, 1337), check: "istio-pods", level: check.Warn, want: "shop/cart: the proxy cannot be distinguished"},
		"the application as 1337, by istio-cni":       {set: []string{byOthers}, change: appAs(1337, 1337), check: "istio-pods", level: check.Warn, want: "shop/cart: the proxy cannot be distinguished"},
		"nothing special":                             {check: "istio-pods", level: check.OK},
		"another port of the mesh":                    {set: []string{"meshConfig.proxyListenPort=16001"}, check: "mesh-ports", level: check.Warn, want: "meshConfig.proxyListenPort is 16001 (ConfigMap istio)"},
		"another port of a revision":                  {set: []string{"revision=canary", "meshConfig.proxyInboundListenPort=16006"}, check: "mesh-ports", level: check.Warn, want: "16006 (ConfigMap istio-canary)"},
		"the controller of node taints":               {set: []string{"values.pilot.taint.enabled=true"}, check: "node-untaint", level: check.Warn, want: "controller of node taints"},
	}
	installed := map[string]*istio{}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			key := strings.Join(tc.set, " ")
			if installed[key] == nil {
				installed[key] = install(t, "", tc.set...)
			}
			i := installed[key]
			r := checked(t, []*istio{i}, i.inject(t, application(tc.change)))[tc.check]
			if r.Level != tc.level || !strings.Contains(r.Message, tc.want) {
				t.Errorf("%+v, want %s with %q", r, tc.level, tc.want)
			}
		})
	}
}

// istioctl as docs/migrate-istio-init.md and docs/migrate-istio-cni.md have it, and as users try it.
func TestIstioctl_pilotCNI_onlyUnvalidatedValuesLast(t *testing.T) {
	sample, err := os.ReadFile("../../config/samples/istio-operator.yaml")
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		operator     string
		set          []string
		plugin, init bool
	}{
		"nothing":                          {init: true},
		"istio-cni":                        {set: []string{"components.cni.enabled=true"}, plugin: true},
		"the value alone has no effect":    {set: []string{"values.pilot.cni.enabled=true"}, init: true},
		"the value after istio-cni":        {set: []string{"components.cni.enabled=false", "values.pilot.cni.enabled=true"}, init: true},
		"the sample":                       {operator: string(sample)},
		"the sample over istio-cni's file": {operator: string(sample), set: []string{"components.cni.enabled=false"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			i := install(t, tc.operator, tc.set...)
			pod := i.inject(t, application(nil))
			if got := findInit(pod, "istio-init") != nil; got != tc.init {
				t.Errorf("istio-init %v, want %v", got, tc.init)
			}
			if got := i.has("DaemonSet", "istio-cni-node"); got != tc.plugin {
				t.Errorf("istio-cni %v, want %v", got, tc.plugin)
			}
		})
	}
}
