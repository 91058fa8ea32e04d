package admissiontest

import (
	"context"
	"errors"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// storesOldStatus writes the status of a profile as earlier builds have, by their definition, and then has the present definition again. The API
// server must not return what today's program could not decode.
func storesOldStatus(t *testing.T, client dynamic.Interface, profiles dynamic.ResourceInterface, name string) {
	t.Helper()
	const nodes = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/nodes"
	define := func(patch string) {
		t.Helper()
		_, err := client.Resource(resources()["CustomResourceDefinition"]).Patch(t.Context(), "proxyprofiles.pod-network-controller.istio.io", types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	list := func(ctx context.Context) (found bool, err error) {
		got, err := profiles.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		_, found, err = unstructured.NestedFieldNoCopy(got.Object, "status", "nodes")
		return found, err
	}
	define(`[{"op": "add", "path": "` + nodes + `", "value": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
		"items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "pods": {"type": "integer"}}}}}]`)
	eventually(t, "the status is as earlier builds wrote it", func(ctx context.Context) error {
		err := apply(ctx, profiles, name, "agent", `{"apiVersion": "pod-network-controller.istio.io/v1alpha1", "kind": "ProxyProfile",
			"metadata": {"name": "`+name+`"}, "status": {"nodes": [{"name": "n1", "pods": 3}]}}`, "status")
		if err != nil {
			return err
		}
		if found, err := list(ctx); err != nil || !found {
			return errors.Join(errNotYet, err)
		}
		return nil
	})
	define(`[{"op": "remove", "path": "` + nodes + `"}]`)
	eventually(t, "the API server leaves the list out", func(ctx context.Context) error {
		if found, err := list(ctx); err != nil || found {
			return errors.Join(errNotYet, err)
		}
		return nil
	})
}
