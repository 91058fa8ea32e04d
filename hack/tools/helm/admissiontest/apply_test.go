package admissiontest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"istio-pod-network-controller/hack/tools/helm/render"
)

// Whoever applies the chart's text to where it is already, conflicts with nobody and changes nothing: a second manager, who comes from Helm or from
// kubectl, as well as the one that was first.
func TestServerSideApply_ofWhatIsThere_conflictsWithNobody(t *testing.T) {
	s := startServer(t)
	s.namespace(t, release, nil, nil)
	s.namespace(t, "istio-system", nil, nil)
	s.define(t, monitoring)
	for values, in := range map[string]string{"the defaults": "{}", "everything": everyObject} {
		for first, start := range map[string]func(*testing.T) engine{
			"Helm 3":                 func(t *testing.T) engine { return s.helm3(t) },
			"Helm 4":                 func(t *testing.T) engine { return s.helm4(t, false) },
			"kubectl, on the client": func(*testing.T) engine { return withKubectl{server: s} },
			"kubectl, on the server": func(*testing.T) engine { return withKubectl{s, "kubectl"} },
		} {
			t.Run(values+", first by "+first, func(t *testing.T) { s.takesItAgain(t, start(t), in) })
		}
	}
}

// takesItAgain installs the chart, applies its text as two other managers, twice each, and has the first engine do it once more.
func (s *server) takesItAgain(t *testing.T, first engine, values string) {
	crds := objects(t, render.Release{Manifest: read(t, definitions()...)})
	made := append(first.install(t, values), crds...)
	defer s.remove(t, made)
	before := s.stored(t, made)
	for _, manager := range []string{"argocd-controller", "kustomize-controller", "argocd-controller"} {
		if err := s.apply(t, manager, made); err != nil {
			t.Errorf("%s: %v", manager, err)
		}
		same(t, before, s.stored(t, made), "objects after %s", manager)
	}
	if _, err := first.upgrade(t, values); err != nil {
		t.Errorf("an upgrade: %v", err)
	}
	same(t, before, s.stored(t, made), "objects after an upgrade")
}

// apply applies objects on the server without force, and returns every conflict.
func (s *server) apply(t *testing.T, manager string, made []*unstructured.Unstructured) error {
	t.Helper()
	resource := s.resources(t)
	var faults []error
	for _, object := range made {
		to, err := resource(object)
		must(t, err)
		if _, err := to.Apply(t.Context(), object.GetName(), object, metav1.ApplyOptions{FieldManager: manager}); err != nil {
			faults = append(faults, fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err))
		}
	}
	return errors.Join(faults...)
}

// stored are objects as the API server has them, without who manages which field. The status is others'.
func (s *server) stored(t *testing.T, made []*unstructured.Unstructured) map[string]any {
	t.Helper()
	resource, found := s.resources(t), map[string]any{}
	for _, object := range made {
		from, err := resource(object)
		if err != nil || from == nil {
			t.Fatalf("%s: %v", object.GetKind(), err)
		}
		is, err := from.Get(t.Context(), object.GetName(), metav1.GetOptions{})
		must(t, err)
		is.SetManagedFields(nil)
		is.SetResourceVersion("")
		delete(is.Object, "status")
		found[object.GetKind()+" "+object.GetName()] = is.Object
	}
	return found
}

// remove deletes objects, and what Helm keeps of the release.
func (s *server) remove(t *testing.T, made []*unstructured.Unstructured) {
	t.Helper()
	s.deletes(t, made)
	must(t, s.admin.CoreV1().Secrets(release).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "owner=helm"}))
}

// deletes deletes objects, the last first, and waits for their end.
func (s *server) deletes(t *testing.T, made []*unstructured.Unstructured) {
	t.Helper()
	resource := s.resources(t)
	for _, object := range slices.Backward(made) {
		from, err := resource(object)
		must(t, err)
		if err := from.Delete(t.Context(), object.GetName(), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
		eventually(t, object.GetKind()+" is gone", func(ctx context.Context) error {
			_, err := from.Get(ctx, object.GetName(), metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return errors.Join(errNotYet, err)
		})
	}
}
