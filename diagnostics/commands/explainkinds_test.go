package commands

import (
	"strings"
	"testing"
)

const (
	rollout = `
apiVersion: argoproj.io/v1alpha1
kind: Rollout
metadata: {name: cart, namespace: shop}
spec:
  template:
    metadata: {annotations: {istio-pod-network-controller/initialize: "yes"}}
    spec: {containers: [{name: app, image: x}]}
`
	sidecarSet = `
apiVersion: apps.kruise.io/v1alpha1
kind: SidecarSet
metadata: {name: proxies}
spec: {containers: [{name: istio-proxy, image: x}]}
`
	workflow = `
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {generateName: build-, namespace: ci}
spec: {templates: [{name: main, container: {image: x}}]}
`
	plain = `
apiVersion: v1
kind: Pod
metadata: {name: plain, namespace: shop}
spec: {containers: [{name: app, image: x}]}
`
	// Schemas and other templates have words of the same kind, and no containers.
	noPods = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.com}
spec: {versions: [{schema: {openAPIV3Schema: {properties: {containers: {type: array, items: {type: object}}, container: {type: object}}}}}]}
---
apiVersion: bitnami.com/v1alpha1
kind: SealedSecret
metadata: {name: secret}
spec: {template: {type: Opaque, metadata: {name: secret}}}
`
)

// A gate before a cluster passes nothing over in silence.
func TestExplain_otherKinds_areExplainedOrNamed(t *testing.T) {
	for name, c := range map[string]struct {
		in     string
		strict bool
		code   int
		want   []string
	}{
		"a pod template of another kind":     {in: plain + "---" + rollout, code: 1, want: []string{"Pod shop/plain: not redirected", "Rollout shop/cart: invalid", `"yes"`}},
		"a template of its own":              {in: plain + "---" + workflow, want: []string{"Workflow ci/build-: not looked at", "spec.templates[0].container"}},
		"a template of its own, with strict": {in: plain + "---" + workflow, strict: true, code: 1, want: []string{"error: --strict: 1 fault\n-:7: Workflow ci/build-: not looked at: "}},
		"nothing else":                       {in: sidecarSet, want: []string{"SidecarSet -/proxies: not looked at", "spec.containers"}},
		"two, with strict":                   {in: sidecarSet + "---" + workflow, strict: true, code: 1, want: []string{"--strict: 2 faults\n-:2: SidecarSet -/proxies: not looked at"}},
		"no containers, with strict":         {in: plain + "---" + noPods, strict: true},
		"no containers at all":               {in: noPods, code: 2, want: []string{"none of the manifests has pods (found: CustomResourceDefinition, SealedSecret)"}},
	} {
		t.Run(name, func(t *testing.T) {
			arguments := []string{"explain", "-f", "-"}
			if c.strict {
				arguments = append(arguments, "--strict")
			}
			code, out, errOut := call(t, c.in, arguments...)
			if code != c.code || len(c.want) == 0 && strings.Contains(out, "not looked at") {
				t.Errorf("exit code %d\n%s%s", code, out, errOut)
			}
			for _, want := range c.want {
				if !strings.Contains(out+errOut, want) {
					t.Errorf("no %q in\n%s%s", want, out, errOut)
				}
			}
		})
	}
	if _, out, _ := call(t, workflow, "explain", "-f", "-", "-o", "json"); !strings.Contains(out, `"notLookedAt"`) || !strings.Contains(out, `"at": "spec.templates[0].container"`) {
		t.Error(out)
	}
}
