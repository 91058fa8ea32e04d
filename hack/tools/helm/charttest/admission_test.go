package charttest

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/yaml"
)

const (
	mutating   = "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"
	validating = "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"
)

// Policies are rendered if the cluster supports them, unless a value says otherwise.
func TestPoliciesFollowTheCluster(t *testing.T) {
	for name, tc := range map[string]struct {
		in    string
		kinds []string
		want  []string
	}{
		"a cluster with neither":              {in: "{}"},
		"a cluster of Kubernetes 1.30":        {in: "{}", kinds: []string{validating}, want: []string{"ValidatingAdmissionPolicy"}},
		"a cluster of Kubernetes 1.36":        {in: "{}", kinds: []string{validating, mutating}, want: []string{"MutatingAdmissionPolicy", "ValidatingAdmissionPolicy"}},
		"switched off":                        {in: "admission: {enabled: false, restrictAgent: false}", kinds: []string{validating, mutating}},
		"switched on, whatever is known":      {in: "admission: {enabled: true, restrictAgent: true}", want: []string{"MutatingAdmissionPolicy", "ValidatingAdmissionPolicy"}},
		"the agent's node in addition":        {in: "startupTaint: true", kinds: []string{validating}, want: []string{"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicy"}},
		"reports on proxies in addition":      {in: withSidecars, kinds: []string{validating}, want: []string{"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicy"}},
		"reports on proxies, switched off":    {in: "{sidecars: {enabled: true}, admission: {restrictAgent: false}}", kinds: []string{validating}},
		"the agent's node, switched off":      {in: "{startupTaint: true, admission: {restrictAgent: false}}", kinds: []string{validating}},
		"who may opt out, whatever is known":  {in: "admission: {allowOptOut: false}", want: []string{"ValidatingAdmissionPolicy"}},
		"one that would change nothing":       {in: "admission: {enabled: true, readinessGate: false}"},
		"a beta of a policy is not the thing": {in: "{}", kinds: []string{strings.Replace(mutating, "v1", "v1beta1", 1)}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, kind := range policyKinds(t, tc.in, tc.kinds) {
				if bound, ok := strings.CutSuffix(kind, "Binding"); ok {
					got = append(got, bound)
				}
			}
			slices.Sort(got)
			if diff := cmp.Diff(tc.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("policies that are bound (-want +got):\n%s", diff)
			}
		})
	}
}

// policyKinds are the kinds of what is rendered for admission: each policy comes with a binding of its name.
func policyKinds(t *testing.T, values string, kinds []string) []string {
	t.Helper()
	rel, err := install(t, values, kinds...)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	bindings := map[string]int{} // how many more than policies, by the policy's kind and name
	for doc := range strings.SplitSeq(rel.Manifest, "\n---\n") {
		var head struct {
			APIVersion, Kind string
			Metadata         struct{ Name string }
			Spec             struct{ PolicyName string }
		}
		if err := yaml.Unmarshal([]byte(doc), &head); err != nil {
			t.Fatal(err)
		}
		if head.APIVersion != "admissionregistration.k8s.io/v1" {
			continue
		}
		if kind, bound := strings.CutSuffix(head.Kind, "Binding"); bound {
			bindings[kind+" "+head.Spec.PolicyName]++
		} else {
			bindings[kind+" "+head.Metadata.Name]--
		}
		found = append(found, head.Kind)
	}
	for policy, n := range bindings {
		if n != 0 {
			t.Errorf("%s: %d bindings more than policies of the name", policy, n)
		}
	}
	return found
}

func TestWhatValuesMeanForPolicies(t *testing.T) {
	const on = "admission: {enabled: true, waitContainer: true"
	for name, tc := range map[string]struct{ in, has, hasNot string }{
		"excluded namespaces and the agent's own":  {in: on + "}\nexcludeNamespaces: [a, b]", has: `values: ["a","b","` + name + `"]`},
		"the agent's own, named twice":             {in: on + "}\nexcludeNamespaces: [" + name + "]", has: `values: ["` + name + `"]`},
		"errors of the policy":                     {in: on + ", failurePolicy: Ignore}", has: "failurePolicy: Ignore"},
		"the proxy's port of the cluster":          {in: on + "}\nenvoyInboundPort: 25006", has: `: "25006"`},
		"the image is the agent's":                 {in: on + "}\nimage: {repository: r/a, tag: '7', pullPolicy: Always}", has: `"image": dyn("r/a:7"), "imagePullPolicy": dyn("Always")`},
		"on Kubernetes a user of no privilege":     {in: on + "}", has: `"runAsUser": dyn(65532)`},
		"on OpenShift the namespace's":             {in: on + "}\nplatform: openshift", has: `"runAsNonRoot": dyn(true)`, hasNot: "runAsUser"},
		"runtimes by their patterns":               {in: on + "}\nunsupportedRuntimeHandlers: ['a.b*', 'c?']", has: `matches("^(a[.]b.*|c.)$")`},
		"no patterns at all":                       {in: on + "}\nunsupportedRuntimeHandlers: []", hasNot: "runtimeClassName"},
		"no resources":                             {in: on + ", waitResources: null}", hasNot: "resources\""},
		"how long to wait":                         {in: on + ", waitTimeout: 1h}", has: `dyn("--timeout=1h")`},
		"by annotation nothing of Istio's counts":  {in: on + "}", hasNot: "DISABLE_ENVOY"},
		"by injection no namespace's wish does so": {in: on + "}\nselect: injected", has: "DISABLE_ENVOY", hasNot: "namespaceObject.metadata.?annotations["},
	} {
		t.Run(name, func(t *testing.T) {
			text := policy(t, tc.in)
			if !strings.Contains(text, tc.has) || tc.hasNot != "" && strings.Contains(text, tc.hasNot) {
				t.Errorf("want %q in it and not %q:\n%s", tc.has, tc.hasNot, text)
			}
		})
	}
}

// policy is the text of the mutating one, which decodes strictly.
func policy(t *testing.T, values string) string {
	t.Helper()
	for _, doc := range documents(t, values) {
		if _, ok := decode(t, doc).(*admissionv1.MutatingAdmissionPolicy); ok {
			return doc
		}
	}
	t.Fatal("no MutatingAdmissionPolicy")
	return ""
}
