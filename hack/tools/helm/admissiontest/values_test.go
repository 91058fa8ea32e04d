package admissiontest

import (
	"context"
	"fmt"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/yaml"

	"istio-pod-network-controller/hack/tools/helm/pairs"
)

// knowsTheKey installs the policy for nodes with the key of another taint: the agent may take that one away, and no other. Its node
// has the first and the last of taints by now.
func (s *server) knowsTheKey(t *testing.T, agent kubernetes.Interface) {
	t.Helper()
	s.install(t, "{startupTaint: true, startupTaintKey: example.com/last}")
	eventually(t, "the API server follows the policy with another key", func(ctx context.Context) error {
		_, err := change{node: "n1", patch: `[{"op": "remove", "path": "/spec/taints/1"}]`, json: true}.by(ctx, agent)
		return err
	})
	_, err := change{node: "n1", patch: `[{"op": "remove", "path": "/spec/taints/0"}]`, json: true}.by(t.Context(), agent)
	expectDenied(t, err, "the agent may take the startup taint away, and no other, and add none")
}

// takesEveryTwoValues has the API server check what every two values of the chart render together, without keeping it.
func (s *server) takesEveryTwoValues(t *testing.T) {
	t.Helper()
	loaded, err := loader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	cover, err := pairs.Of(loaded)
	if err != nil {
		t.Fatal(err)
	}
	check := s.checker(t)
	rows, _ := cover.Rows()
	made := map[string]bool{}
	for _, row := range rows {
		values := cover.Values(row, nil)
		kinds := pairs.Clusters()[fmt.Sprint(values[pairs.ClusterPath])]
		delete(values, pairs.ClusterPath)
		text, err := yaml.Marshal(values)
		if err != nil {
			t.Fatal(err)
		}
		for _, object := range render(t, string(text), kinds) {
			if namespace := object.GetNamespace(); namespace != "" && !made[namespace] {
				made[namespace] = true
				s.namespace(t, namespace, nil, nil)
			}
			if err := check(object); err != nil {
				t.Errorf("%s %s: %v, with\n%s", object.GetKind(), object.GetName(), err, text)
			}
		}
	}
	t.Logf("%d sets of values", len(rows))
}

// checker returns a function that has the API server check an object. Kinds that it does not have, which are OpenShift's, pass.
func (s *server) checker(t *testing.T) func(*unstructured.Unstructured) error {
	t.Helper()
	client, err := dynamic.NewForConfig(s.config)
	if err != nil {
		t.Fatal(err)
	}
	groups, err := restmapper.GetAPIGroupResources(s.admin.Discovery())
	if err != nil {
		t.Fatal(err)
	}
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	return func(object *unstructured.Unstructured) error {
		mapping, err := mapper.RESTMapping(object.GroupVersionKind().GroupKind(), object.GroupVersionKind().Version)
		if meta.IsNoMatchError(err) {
			return nil
		}
		if err != nil {
			return err
		}
		to := dynamic.ResourceInterface(client.Resource(mapping.Resource))
		if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
			to = client.Resource(mapping.Resource).Namespace(object.GetNamespace())
		}
		options := metav1.ApplyOptions{FieldManager: "helm", Force: true, DryRun: []string{metav1.DryRunAll}}
		_, err = to.Apply(t.Context(), object.GetName(), object, options)
		return err
	}
}
