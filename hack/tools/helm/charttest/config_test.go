package charttest

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const configDir = "../../../../config"

// What people apply without Helm are whole, valid objects, the namespace first.
func TestConfigDecodesStrictly(t *testing.T) {
	for pattern, want := range map[string]int{
		"kubernetes.yaml": 10, "openshift.yaml": 12, "admission.yaml": 3, "namespace.yaml": 1, "samples/namespace.yaml": 1, "samples/pod.yaml": 1,
		"samples/proxy-profile.yaml":         0, // of a kind of ours: admissiontest creates it
		"samples/proxy-profile-envoy.yaml":   0,
		"samples/proxy-profile-nginx.yaml":   0,
		"samples/proxy-profile-istio.yaml":   0,
		"samples/proxy-profile-shared*.yaml": 0,
	} {
		files, err := filepath.Glob(filepath.Join(configDir, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("find %s: %d found, %v", pattern, len(files), err)
		}
		for _, file := range files {
			t.Run(filepath.Base(file), func(t *testing.T) {
				got := kinds(t, read(t, file))
				if len(got) != want {
					t.Errorf("objects of Kubernetes' own types are %v, want %d", got, want)
				}
				if want > 1 && got[0] != "Namespace" {
					t.Errorf("first is a %s, want the Namespace", got[0])
				}
			})
		}
	}
}

// kinds are those of the documents that are of Kubernetes' own types.
func kinds(t *testing.T, manifest string) []string {
	t.Helper()
	var found []string
	for doc := range strings.SplitSeq(manifest, "\n---\n") {
		if object := decode(t, doc); object != nil {
			found = append(found, object.GetObjectKind().GroupVersionKind().Kind)
		}
	}
	return found
}

// A token that is stolen from an agent must not change pods of other nodes, however the agent was installed.
func TestConfigBoundsTheAgent(t *testing.T) {
	for file, want := range map[string][]string{
		"kubernetes.yaml": {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"},
		"openshift.yaml":  {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"},
		"admission.yaml":  {"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"},
	} {
		got := kinds(t, read(t, filepath.Join(configDir, file)))
		for _, kind := range want {
			if !slices.Contains(got, kind) {
				t.Errorf("%s has %v, want a %s", file, got, kind)
			}
		}
	}
}
