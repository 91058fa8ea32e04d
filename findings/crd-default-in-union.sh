#!/usr/bin/env bash
# The default of a custom resource's union stays when somebody applies another member of it: the object has two, and is refused.
#
# A definition has an object of which one property may be set (maxProperties: 1), as unions are written, and a default for it. People apply an object
# without it, and later choose another member.
#
# Expected: the member that was applied replaces the default, as a value takes the place of a default in any other field.
# Seen: the default was stored when the object was made, and no field manager owns it. Applying another member, also by the same manager and with force, adds
#   that: "Too many: 2". Nobody who applies can take the default away. A first member that was applied itself is replaced, since its manager owns it.
# Source: k8s.io/apimachinery v0.37.2, pkg/util/managedfields/internal/structuredmerge.go, Apply, which defaults the merged object; structured-merge-diff v6,
#   merge/update.go, prune, which removes what the manager has applied before and nothing else
# Date: 2026-11-30
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
source "$(dirname "$0")/common.sh"

program union k8s.io/apiextensions-apiserver@v0.37.2 k8s.io/apimachinery@v0.37.2 <<'END'
// Command union applies objects one after the other, as the API server does with custom resources, and prints the members of a union and what a
// validation says.
package main

import (
	"fmt"
	"log"
	"maps"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	runtimeschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

var kind = runtimeschema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Profile"}

// resource has one version: nothing is converted.
type resource struct{ structural *schema.Structural }

func (resource) Convert(any, any, any) error { return nil }
func (resource) ConvertToVersion(in runtime.Object, _ runtime.GroupVersioner) (runtime.Object, error) {
	return in, nil
}
func (resource) ConvertFieldLabel(_ runtimeschema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}
func (resource) New(runtimeschema.GroupVersionKind) (runtime.Object, error) {
	empty := &unstructured.Unstructured{}
	empty.SetGroupVersionKind(kind)
	return empty, nil
}
func (r resource) Default(o runtime.Object) {
	defaulting.Default(o.(*unstructured.Unstructured).Object, r.structural)
}

func object(members map[string]any) *unstructured.Unstructured {
	out := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "edge", "namespace": "shop"}}}
	out.SetGroupVersionKind(kind)
	if members != nil {
		out.Object["handover"] = members
	}
	return out
}

// definition has the union handover, of members none and beside.
func definition(byDefault map[string]any) *apiextensions.JSONSchemaProps {
	most, empty := int64(1), apiextensions.JSONSchemaProps{Type: "object"}
	union := apiextensions.JSONSchemaProps{Type: "object", MaxProperties: &most, Properties: map[string]apiextensions.JSONSchemaProps{"none": empty, "beside": empty}}
	if byDefault != nil {
		value := apiextensions.JSON(byDefault)
		union.Default = &value
	}
	return &apiextensions.JSONSchemaProps{Type: "object", Properties: map[string]apiextensions.JSONSchemaProps{"handover": union}}
}

// models are the same for the merge.
func models() map[string]*spec.Schema {
	object := spec.SchemaProps{Type: []string{"object"}}
	union, root := spec.Schema{SchemaProps: object}, spec.Schema{SchemaProps: object}
	union.Properties = map[string]spec.Schema{"none": {SchemaProps: object}, "beside": {SchemaProps: object}}
	text, metadata := spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"string"}}}, spec.Schema{SchemaProps: object}
	metadata.AddExtension("x-kubernetes-preserve-unknown-fields", true)
	root.Properties = map[string]spec.Schema{"apiVersion": text, "kind": text, "metadata": metadata, "handover": union}
	root.AddExtension("x-kubernetes-group-version-kind", []any{map[string]any{"group": kind.Group, "version": kind.Version, "kind": kind.Kind}})
	return map[string]*spec.Schema{"profile": &root}
}

func applied(byDefault map[string]any, steps ...map[string]any) string {
	props := definition(byDefault)
	structural, err := schema.NewStructural(props)
	check(err)
	validator, _, err := validation.NewSchemaValidator(props)
	check(err)
	converter, err := managedfields.NewTypeConverter(models(), false)
	check(err)
	r := resource{structural}
	manager, err := managedfields.NewDefaultCRDFieldManager(converter, r, r, r, kind, kind.GroupVersion(), "", nil)
	check(err)
	live, err := r.New(kind)
	check(err)
	for _, members := range steps {
		live, err = manager.Apply(live, object(members), "alice", true)
		check(err)
	}
	now := live.(*unstructured.Unstructured).Object
	members, _ := now["handover"].(map[string]any)
	return fmt.Sprint(slices.Sorted(maps.Keys(members)), " ", validation.ValidateCustomResource(nil, map[string]any{"handover": now["handover"]}, validator).ToAggregate())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	beside, none := map[string]any{"beside": map[string]any{}}, map[string]any{"none": map[string]any{}}
	fmt.Println(applied(beside, nil))
	fmt.Println(applied(beside, nil, none))
	fmt.Println(applied(nil, beside, none))
}
END

seen=$("$dir/union")
{ read -r made; read -r other; read -r without; } <<<"$seen"
expect "applied without a member" "$made" "[beside] <nil>"
expect "and then with another one" "$other" "[beside none] handover: Too many: 2: must have at most 1 item"
expect "without a default, one member after the other" "$without" "[none] <nil>"
