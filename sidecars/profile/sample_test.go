package profile

import (
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"istio-pod-network-controller/api/v1alpha1"
)

// sample compiles a profile of the samples.
func sample(t *testing.T, name string) *Version {
	t.Helper()
	text, err := os.ReadFile("../../config/samples/" + name)
	if err != nil {
		t.Fatal(err)
	}
	object := v1alpha1.ProxyProfile{Spec: v1alpha1.ProxyProfileSpec{Network: v1alpha1.Network{OutboundPort: 15001, InboundPort: 15006}}} // as the schema does
	if err := yaml.UnmarshalStrict(text, &object); err != nil {
		t.Fatal(err)
	}
	p, err := Compile(&object)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The sample's bootstrap is YAML whatever a pod is called, and has the admin interface where the agent asks for it.
func TestSamples_envoy_renders(t *testing.T) {
	p := sample(t, "proxy-profile-envoy.yaml")
	pod := thePod()
	pod.Spec.ServiceAccountName = `a": {}, "b`
	files, err := (Instance{Version: p, Pod: pod, Epoch: 3}).Files()
	if err != nil {
		t.Fatal(err)
	}
	var bootstrap struct {
		Node  struct{ ID, Cluster string }
		Admin struct {
			Address struct {
				Pipe struct {
					Path string
					Mode int
				}
			}
		}
		StaticResources struct {
			Listeners []struct{ Name string }
			Clusters  []struct{ Name string }
		} `json:"static_resources"`
	}
	if err := yaml.Unmarshal([]byte(files["envoy.yaml"]), &bootstrap); err != nil {
		t.Fatalf("%v in\n%s", err, files["envoy.yaml"])
	}
	b := bootstrap
	if b.Node.ID != "cart-1.shop" || b.Node.Cluster != `a": {}, "b` || b.Admin.Address.Pipe.Path != "/run/sidecar/admin-3.sock" || b.Admin.Address.Pipe.Mode != 0o600 {
		t.Errorf("%+v", b)
	}
	if len(b.StaticResources.Listeners) != 3 || len(b.StaticResources.Clusters) != 3 || strings.Contains(files["envoy.yaml"], "{{") {
		t.Errorf("%+v", b)
	}
}

// The sample's nginx has what only one epoch can have by epoch and slot.
func TestSamples_nginx_renders(t *testing.T) {
	p := sample(t, "proxy-profile-nginx.yaml")
	pod := thePod()
	pod.Annotations = map[string]string{"nginx.example.com/port": "9090"}
	files, err := (Instance{Version: p, Pod: pod, Epoch: 3}).Files()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"listen 0.0.0.0:15006 reuseport;", "listen 0.0.0.0:15001 reuseport;", "listen unix:/run/sidecar/admin-3.sock;", "listen 0.0.0.0:15021;",
		"proxy_pass 127.0.0.1:9090;", `~ ":(15001|15006)$"`,
	} {
		if !strings.Contains(files["nginx.conf"], want) {
			t.Errorf("no %q in\n%s", want, files["nginx.conf"])
		}
	}
	if got := p.Readiness(3).HTTPGet.Socket; got != "admin-3.sock" {
		t.Errorf("it is asked at %s", got)
	}
	pod.Annotations["nginx.example.com/port"] = "80; } server { listen 81"
	if _, err := (Instance{Version: p, Pod: pod}).Files(); err == nil {
		t.Error("an annotation becomes a directive")
	}
}

// Whatever the pods are called, each has listeners and servers in its own network namespace, and nothing connects in the proxy's.
func TestSamples_shared_renders(t *testing.T) {
	p := sample(t, "proxy-profile-shared.yaml")
	first, second := thePod(), thePod()
	second.Name, second.UID = "cart-2", "22222222-2222-2222-2222-222222222222"
	files, err := RenderShared(p, SharedData{
		Pods:    []SharedPod{{PodDataOf(first), "cni-1"}, {PodDataOf(second), "cni-2"}},
		Version: "v-7",
	})
	if err != nil {
		t.Fatal(err)
	}
	config := files["haproxy.cfg"]
	in := map[string]int{}
	for line := range strings.Lines(config) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != "bind" && words[0] != "server" || strings.Contains(line, "unix@") {
			continue
		}
		if !strings.Contains(line, " namespace ") {
			t.Errorf("in the proxy's own network: %s", line)
		}
		in[words[0]+" "+words[len(words)-1]]++
	}
	for _, want := range []string{"bind 'cni-1'", "bind 'cni-2'", "server 'cni-1'", "server 'cni-2'"} {
		if in[want] != 2 {
			t.Errorf("%d lines %s, want one a direction", in[want], want)
		}
	}
	for _, want := range []string{
		`bind "unix@/run/sidecar/${POD_UID}/version.sock" mode 600`, " string 'v-7'\n", ":15101 namespace 'cni-1'\n", ":15106 namespace 'cni-2'\n",
		"str(\"inbound pod=\"shop/cart-2)\n",
	} {
		if !strings.Contains(config, want) {
			t.Errorf("no %q in\n%s", want, config)
		}
	}
}
