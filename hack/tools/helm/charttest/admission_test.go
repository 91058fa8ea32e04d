package charttest

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
)

// Policies are rendered if the cluster supports them, unless a value says otherwise. Each comes with one binding of its name.
func TestPoliciesFollowTheCluster(t *testing.T) {
	const taint, sidecars, proxy = name + "-node", name + "-sidecars", name + "-profiles"
	old, older, latest := []string{validating}, []string{none}, []string{validating, mutating}
	for name, tc := range map[string]struct {
		in    string
		kinds []string
		want  []string // M for the mutating one, else the names of the validating ones
	}{
		"a cluster with neither":              {in: "{}", kinds: older},
		"a cluster of Kubernetes 1.30":        {in: "{}", kinds: old, want: []string{name}},
		"a cluster of Kubernetes 1.36":        {in: "{}", kinds: latest, want: []string{"M", name}},
		"switched off":                        {in: "admission: {enabled: false, restrictAgent: false}", kinds: latest},
		"switched on":                         {in: "admission: {enabled: true, restrictAgent: true}", kinds: latest, want: []string{"M", name}},
		"the agent's node in addition":        {in: "hooks.startupTaint.enabled: true", kinds: old, want: []string{name, taint}},
		"reports on proxies in addition":      {in: withSidecars, kinds: old, want: []string{name, proxy, sidecars}},
		"tokens in addition":                  {in: withTokens, kinds: old, want: []string{name, proxy, sidecars, name + "-tokens", name + "-tokens-node"}},
		"all of it, switched off":             {in: "{hooks.startupTaint.enabled: true, proxies: {enabled: true}, admission: {restrictAgent: false}}", kinds: old},
		"who may opt out":                     {in: "admission: {allowOptOut: false}", kinds: old, want: []string{name, name + "-opt-out"}},
		"one that would change nothing":       {in: "admission: {enabled: true, readinessGate: false}", kinds: latest, want: []string{name}},
		"a beta of a policy is not the thing": {in: "{}", kinds: []string{strings.Replace(mutating, "v1", "v1beta1", 1)}},
	} {
		t.Run(name, func(t *testing.T) {
			objects := rendering(t, tc.in, tc.kinds...).objects
			var got, bound []string
			for _, p := range all[*admissionv1.MutatingAdmissionPolicy](objects) {
				got, bound = append(got, "M"), append(bound, "M "+one[*admissionv1.MutatingAdmissionPolicyBinding](t, objects).Spec.PolicyName, "M "+p.Name)
			}
			for _, p := range all[*admissionv1.ValidatingAdmissionPolicy](objects) {
				got, bound = append(got, p.Name), append(bound, p.Name)
			}
			for _, b := range all[*admissionv1.ValidatingAdmissionPolicyBinding](objects) {
				bound = append(bound, b.Spec.PolicyName)
			}
			slices.Sort(got)
			slices.Sort(bound)
			if diff := cmp.Diff(tc.want, got); diff != "" || len(bound) != 2*len(got) || len(slices.Compact(bound)) != len(got) {
				t.Errorf("policies and bindings %v, policies (-want +got):\n%s", bound, diff)
			}
		})
	}
}

func TestWhatValuesMeanForPolicies(t *testing.T) {
	var cases map[string]struct {
		In          map[string]any
		Has, HasNot string
	}
	table(t, "policies.yaml", &cases)
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			made := rendering(t, yamlOf(t, tc.In))
			one[*admissionv1.MutatingAdmissionPolicy](t, made.objects)
			text := slices.DeleteFunc(made.Documents(), func(doc string) bool { return !strings.Contains(doc, "kind: MutatingAdmissionPolicy\n") })[0]
			if !strings.Contains(text, tc.Has) || tc.HasNot != "" && strings.Contains(text, tc.HasNot) {
				t.Errorf("want %q in it and not %q:\n%s", tc.Has, tc.HasNot, text)
			}
		})
	}
}
