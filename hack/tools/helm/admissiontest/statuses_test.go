package admissiontest

import (
	"context"
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// takesCounts writes a status as the elected agent does, which is refused once the object has changed.
func takesCounts(t *testing.T, profiles dynamic.ResourceInterface) {
	seen, err := profiles.Get(t.Context(), "haproxy", metav1.GetOptions{})
	must(t, err)
	patch := func(rollout string) error {
		_, err := profiles.Patch(t.Context(), seen.GetName(), types.MergePatchType, []byte(`{"metadata":{"resourceVersion":"`+seen.GetResourceVersion()+`"},"status":{
			"observedGeneration":1,"pods":3,"upgraded":2,"failed":1,"nodeCount":2,"nodesPaused":1,"rollout":`+rollout+`,
			"conditions":[{"type":"Upgraded","status":"False","reason":"Paused","message":"x","observedGeneration":1,"lastTransitionTime":"2026-01-02T03:04:05Z"}]}}`),
			metav1.PatchOptions{FieldManager: "agent", FieldValidation: metav1.FieldValidationStrict}, "status")
		return err
	}
	if err := patch(`{"hash":"h1","admitted":65537}`); !apierrors.IsInvalid(err) {
		t.Errorf("more nodes than all: %v", err)
	}
	// No agent could read any profile.
	lower := strings.ReplaceAll(conditions(""), "T03:04:05Z", "t03:04:05z")
	if _, err := profiles.Patch(t.Context(), seen.GetName(), types.MergePatchType, []byte(lower), metav1.PatchOptions{}, "status"); !apierrors.IsInvalid(err) {
		t.Errorf("a time that cannot be decoded: %v", err)
	}
	for _, rollout := range []string{`{"hash":"h1","admitted":65536}`, "null"} {
		if err := patch(rollout); err != nil {
			t.Error(err)
		}
		if err := patch(rollout); !apierrors.IsConflict(err) {
			t.Errorf("computed from an old object: %v", err)
		}
		if seen, err = profiles.Get(t.Context(), "haproxy", metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, is, _ := unstructured.NestedMap(seen.Object, "status", "rollout"); is != (rollout != "null") {
			t.Errorf("the status is %v after %s", seen.Object["status"], rollout)
		}
	}
}

// changesProfile changes what the rules of pods with a shared proxy depend on, and to numbers that agents cannot read: both are refused. Rules of other
// pods follow their proxies.
func changesProfile(t *testing.T, profiles dynamic.ResourceInterface) {
	const toContainer, ofShared = `{"spec":{"container":{"image":"a/b","readiness":{"tcpPort":80}},"shared":null}}`, `{"spec":{"network":{"inboundPort":16107}}}`
	const toIstio = `{"spec":{"container":null,"istio":{"image":"a/b"}}}`
	for patch, want := range map[string]string{
		toContainer: "shared is neither added nor removed later", ofShared: "make another profile",
		`{"spec":{"network":{"inboundPort":16006}}}`: "", `{"spec":{"container":{"transparent":true}}}`: "", `{"spec":{"container":{"runAsUser":1400}}}`: "",
		`{"spec":{"container":{"image":"a/b:2"}}}`: "", toIstio: "", `{"spec":{"network":{"excludeInboundPorts":[15021,9100]}}}`: "",
		`{"spec":{"network":{"excludeInboundPorts":[65616]}}}`:       "spec.network.excludeInboundPorts[0]",
		`{"spec":{"container":{"update":{"partition":2147483648}}}}`: "spec.container.update.partition",
		// What kubectl would not let through, since it asks for strict validation: the words are for others.
		`{"spec":{"container":null,"istio":null,"image":"a/b"}}`: "image, mode, handover and what else earlier builds read in spec itself belongs in one of these",
	} {
		name := "haproxy"
		switch patch {
		case toContainer, ofShared:
			name = "envoy-shared"
		case toIstio:
			name = "nginx"
		}
		_, err := profiles.Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", patch, err, want)
		}
	}
}

// storesOldStatus writes the status of a profile as earlier builds have, by their definition, and then has the present definition again. The API
// server must not return what today's program could not decode.
func (s *server) storesOldStatus(t *testing.T, profiles dynamic.ResourceInterface, name string) {
	const nodes = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/nodes"
	definitions := s.dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	becomes := func(patch string, wantFound bool, change func(context.Context) error) {
		t.Helper()
		_, err := definitions.Patch(t.Context(), "proxyprofiles."+apiGroup, types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
		must(t, err)
		eventually(t, "the API server follows the definition", func(ctx context.Context) error {
			errChange := change(ctx)
			got, err := profiles.Get(ctx, name, metav1.GetOptions{})
			if err := errors.Join(errChange, err); err != nil {
				return err
			}
			if _, found, err := unstructured.NestedFieldNoCopy(got.Object, "status", "nodes"); err != nil || found != wantFound {
				return errors.Join(errNotYet, err)
			}
			return nil
		})
	}
	becomes(`[{"op": "add", "path": "`+nodes+`", "value": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
		"items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "pods": {"type": "integer"}}}}}]`, true, func(ctx context.Context) error {
		return apply(ctx, profiles, name, "agent", `{"apiVersion": "pod-network-controller.istio.io/v1alpha1", "kind": "ProxyProfile",
			"metadata": {"name": "`+name+`"}, "status": {"nodes": [{"name": "n1", "pods": 3}]}}`, "status")
	})
	becomes(`[{"op": "remove", "path": "`+nodes+`"}]`, false, func(context.Context) error { return nil })
}
