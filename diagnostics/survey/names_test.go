package survey

import (
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"istio-pod-network-controller/diagnostics/cluster"
	"istio-pod-network-controller/test/standins/apistandin"
)

func TestNames_cluster_areListed(t *testing.T) {
	s := &apistandin.Server{
		Nodes:      []corev1.Node{newNode("a"), newNode("b"), newNode("c")},
		Namespaces: []corev1.Namespace{newNamespace("shop", ""), newNamespace("ship", ""), newNamespace("mesh", "")},
	}
	api := httptest.NewServer(s)
	t.Cleanup(api.Close)
	c, err := cluster.NewClient(&rest.Config{Host: api.URL})
	if err != nil {
		t.Fatal(err)
	}
	for resource, want := range map[string][]string{"namespaces": {"shop", "ship"}, "nodes": {}} {
		got, err := Names(t.Context(), c, resource, "sh")
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", resource, err, diff)
		}
	}
	if _, err := Names(t.Context(), c, "secrets", ""); err == nil {
		t.Error("names of secrets")
	}
}
