package survey

import (
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"istio-pod-network-controller/diagnostics/cluster"
	"istio-pod-network-controller/test/standins/apistandin"
)

func TestNamesAndAgentVersions_cluster_areListed(t *testing.T) {
	newer := fine()
	newer.Version, newer.Revision = "2", "abc"
	s := &apistandin.Server{
		Pods:       []corev1.Pod{newAgent("a", says(newer)), newAgent("b", says(newer)), newAgent("c")},
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
	want := []AgentVersion{{"2 (abc)", 2}, {"unknown (it says nothing about itself)", 1}}
	got, err := AgentVersions(t.Context(), c, "")
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	s.Forbids = func(string, string) bool { return true }
	if _, err := AgentVersions(t.Context(), c, ""); !apierrors.IsForbidden(err) {
		t.Errorf("without the right: %v", err)
	}
}
