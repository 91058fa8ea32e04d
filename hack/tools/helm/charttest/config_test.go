package charttest

import (
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes/scheme"
)

// What people apply without Helm are whole, valid objects, the namespace first. A token that is stolen from an agent must not change pods of other
// nodes, however the agent was installed.
func TestConfigDecodesStrictly(t *testing.T) {
	const bounds = "ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding"
	for pattern, want := range map[string]struct {
		objects int // of Kubernetes' own types
		kinds   string
	}{
		"kubernetes.yaml": {8, bounds}, "openshift.yaml": {10, bounds}, "admission.yaml": {3, "MutatingAdmissionPolicy MutatingAdmissionPolicyBinding"},
		"namespace.yaml": {1, ""}, "samples/namespace.yaml": {1, ""}, "samples/pod.yaml": {1, ""}, "samples/proxy-profile-egress.yaml": {1, "Namespace"},
		"samples/proxy-profile-[^e]*.yaml": {0, ""}, "samples/proxy-profile.yaml": {0, ""}, "samples/proxy-profile-envoy.yaml": {0, ""}, // admissiontest creates them
	} {
		files, err := filepath.Glob(filepath.Join(configDir, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("find %s: %d found, %v", pattern, len(files), err)
		}
		for _, file := range files {
			var found []string
			for doc := range strings.SplitSeq(read(t, file), "\n---\n") {
				if kind := decode(t, doc).GetObjectKind().GroupVersionKind(); scheme.Scheme.Recognizes(kind) {
					found = append(found, kind.Kind)
				}
			}
			if len(found) != want.objects || want.objects > 1 && found[0] != "Namespace" || !strings.Contains(strings.Join(found, " "), want.kinds) {
				t.Errorf("%s: objects are %v, want %d, with %s", file, found, want.objects, want.kinds)
			}
		}
	}
}
