package sidecars

import (
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"istio-pod-network-controller/api/v1alpha1"
)

// The sample's bootstrap is YAML whatever a pod is called, and has the admin interface where the agent asks for it.
func TestTheSampleForEnvoyRenders(t *testing.T) {
	text, err := os.ReadFile("../config/samples/sidecar-profile-envoy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var object v1alpha1.SidecarProfile
	if err := yaml.UnmarshalStrict(text, &object); err != nil {
		t.Fatal(err)
	}
	object.Spec.Network.OutboundPort, object.Spec.Network.InboundPort = 15001, 15006 // as the schema does
	p, err := Compile(&object)
	if err != nil {
		t.Fatal(err)
	}
	pod := thePod()
	pod.Spec.ServiceAccountName = `a": {}, "b`
	files, err := (launch{profile: p, pod: pod, epoch: 3}).files()
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
