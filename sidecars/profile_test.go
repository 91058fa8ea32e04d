package sidecars

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/api/v1alpha1"
)

// A new hash is a new proxy for every pod.
func TestWhichChangesNeedANewProxy(t *testing.T) {
	before, err := Compile(&newNode().profile)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*v1alpha1.SidecarProfileSpec)
		want   bool
	}{
		"nothing": {func(*v1alpha1.SidecarProfileSpec) {}, false},
		"who may choose it": {func(s *v1alpha1.SidecarProfileSpec) {
			s.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
		}, false},
		"how it is rolled out":        {func(s *v1alpha1.SidecarProfileSpec) { s.Rollout.MaxParallel, s.DrainSeconds = 7, 7 }, false},
		"how often it is asked":       {func(s *v1alpha1.SidecarProfileSpec) { s.Readiness.PeriodSeconds = 70 }, false},
		"what its image is pulled by": {func(s *v1alpha1.SidecarProfileSpec) { s.ImagePullSecrets = []v1alpha1.SecretReference{{Name: "a"}} }, false},
		"its image":                   {func(s *v1alpha1.SidecarProfileSpec) { s.Image = "other" }, true},
		"its files":                   {func(s *v1alpha1.SidecarProfileSpec) { s.Files = nil }, true},
		"its secrets":                 {func(s *v1alpha1.SidecarProfileSpec) { s.Secrets = []v1alpha1.SecretSource{{Name: "a"}} }, true},
	} {
		p := newNode().profile
		c.change(&p.Spec)
		after, err := Compile(&p)
		if err != nil || (after.Hash != before.Hash) != c.want {
			t.Errorf("%s: a new proxy: %t, want %t; error %v", name, after.Hash != before.Hash, c.want, err)
		}
	}
}
