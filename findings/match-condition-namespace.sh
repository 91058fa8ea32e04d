#!/usr/bin/env bash
# In the matchConditions of an admission policy namespaceObject compiles, and is null.
#
# Policies in CEL have the variable namespaceObject. A policy that is for some namespaces only says so in its matchConditions.
#
# Expected: it is the namespace of the request there, too, or the API server refuses the policy, as it does with an unknown variable.
# Seen: the expression compiles, with the types of its fields. When a request comes, `namespaceObject == null` is true, and a field of it is the error "no
#   such key": every request is refused with failurePolicy Fail, and the policy never acts with Ignore. The same expression as a validation or a mutation
#   gets the namespace.
# Source: k8s.io/apiserver v0.37.2, pkg/admission/plugin/webhook/matchconditions/matcher.go, Match, which has no namespace to give, for policies and webhooks
# Date: 2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
source "$(dirname "$0")/common.sh"

program conditions k8s.io/apiserver@v0.37.2 <<'END'
// Command conditions evaluates expressions as match conditions, and as validations, of a request for a pod in a namespace with labels.
package main

import (
	"context"
	"fmt"
	"log"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
)

func main() {
	kind, resource := schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "cart", Namespace: "shop"}}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{"mesh": "yes"}}}
	attributes := admission.NewAttributesRecord(pod, nil, kind, "shop", "cart", resource, "", admission.Create, nil, false, nil)
	versioned := &admission.VersionedAttributes{Attributes: attributes, VersionedKind: kind, VersionedObject: admission.NewLazyObject(pod)}
	request := cel.CreateAdmissionRequest(attributes, metav1.GroupVersionResource(resource), metav1.GroupVersionKind(kind))
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	check(err)
	ctx, fail := context.Background(), admissionregistrationv1.Fail
	for _, text := range []string{"unknownObject == null", "namespaceObject == null", "namespaceObject.metadata.labels.mesh == 'yes'"} {
		compiled := compiler.CompileCondition([]cel.ExpressionAccessor{&matchconditions.MatchCondition{Name: "c", Expression: text}},
			cel.OptionalVariableDeclarations{}, environment.StoredExpressions)
		if len(compiled.CompilationErrors()) > 0 {
			fmt.Println("refused")
			continue
		}
		match := matchconditions.NewMatcher(compiled, &fail, "policy", "validate", "finding").Match(ctx, versioned, nil, nil)
		validations, _, err := compiled.ForInput(ctx, versioned, request, cel.OptionalVariableBindings{}, cel.CreateNamespaceObject(namespace),
			celconfig.RuntimeCELCostBudget)
		check(err)
		fmt.Printf("match %t, error %t; validation %v\n", match.Matches, match.Error != nil, validations[0].EvalResult)
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
END

seen=$("$dir/conditions")
{ read -r unknown; read -r null; read -r label; } <<<"$seen"
expect "a variable that there is not" "$unknown" refused
expect "namespaceObject == null" "$null" "match true, error false; validation false"
expect "namespaceObject.metadata.labels.mesh == 'yes'" "$label" "match false, error true; validation true"
