package admissiontest

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"istio-pod-network-controller/hack/tools/helm/render"
)

// monitoring are the Prometheus operator's kinds, as far as they say how objects are stored.
const monitoring = "testdata/monitoring.yaml"

// define makes the definitions of files, and waits until the API server has their kinds.
func (s *server) define(t *testing.T, files ...string) {
	t.Helper()
	to := s.dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	for _, object := range objects(t, render.Release{Manifest: read(t, files...)}) {
		_, err := to.Apply(t.Context(), object.GetName(), object, metav1.ApplyOptions{FieldManager: "kubectl", Force: true})
		must(t, err)
		kind, _, err := unstructured.NestedString(object.Object, "spec", "names", "kind")
		must(t, err)
		eventually(t, "the API server knows the kind "+kind, func(context.Context) error {
			if !slices.ContainsFunc(s.kinds(t), func(k string) bool { return strings.HasSuffix(k, "/"+kind) }) {
				return errNotYet
			}
			return nil
		})
	}
}

// undefine deletes what define has made, and waits until the API server has the kinds no more.
func (s *server) undefine(t *testing.T, files ...string) {
	t.Helper()
	made := objects(t, render.Release{Manifest: read(t, files...)})
	s.deletes(t, made)
	eventually(t, "the API server has the kinds no more", func(context.Context) error {
		kinds := s.kinds(t)
		for _, object := range made {
			kind, _, _ := unstructured.NestedString(object.Object, "spec", "names", "kind")
			if slices.ContainsFunc(kinds, func(k string) bool { return strings.HasSuffix(k, "/"+kind) }) {
				return errNotYet
			}
		}
		return nil
	})
}

// definitions are the chart's own.
func definitions() []string {
	return []string{chartDir + "/crds/managedproxies.yaml", chartDir + "/crds/proxyprofiles.yaml"}
}

// read returns files as one manifest.
func read(t *testing.T, files ...string) (manifest string) {
	t.Helper()
	for _, file := range files {
		text, err := os.ReadFile(file)
		must(t, err)
		manifest += "\n---\n" + string(text)
	}
	return manifest
}
