package profile

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"istio-pod-network-controller/api/v1alpha1"
)

// A new hash is a new proxy for every pod.
func TestHash_profileChanges_onlySomeNeedNewProxy(t *testing.T) {
	before := usual().Hash()
	for name, c := range map[string]struct {
		change func(*Spec)
		want   bool
	}{
		"nothing": {func(*Spec) {}, false},
		"who may choose it": {func(s *Spec) {
			s.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
		}, false},
		"how it is rolled out":  {func(s *Spec) { s.Rollout.MaxParallel, s.Rollout.DrainSeconds = 7, 7 }, false},
		"how often it is asked": {func(s *Spec) { s.Readiness.PeriodSeconds = 70 }, false},
		"what becomes of one that does not answer": {func(s *Spec) {
			s.Readiness.FailureThreshold, s.Liveness = 7, &Probe{TCPPort: 15021}
		}, false},
		"what its image is pulled by": {func(s *Spec) { s.ImagePullSecrets = []v1alpha1.SecretReference{{Name: "a"}} }, false},
		"its image":                   {func(s *Spec) { s.Image = "other" }, true},
		"its files":                   {func(s *Spec) { s.Files = nil }, true},
		"how its files are checked":   {func(s *Spec) { s.Shared = &Reload{Check: []string{"other"}} }, true},
		"its secrets":                 {func(s *Spec) { s.Secrets = []v1alpha1.SecretSource{{Name: "a"}} }, true},
	} {
		after := usual()
		c.change(&after)
		if got := after.Hash() != before; got != c.want {
			t.Errorf("%s: a new proxy: %t, want %t", name, got, c.want)
		}
	}
}

// Agents of two versions run beside each other during an update. If they disagreed about the hash of a profile that nobody has changed, each
// would replace the other's proxies. A field that is new in the API must be left out of the hash while it has its default, which the API server
// adds to profiles that are there: see HashOf, and then add it to testdata/fields.txt.
func TestHash_newAgent_staysTheSame(t *testing.T) {
	for file, want := range map[string]string{
		"proxy-profile.yaml": "074a5921a8595edb", "proxy-profile-envoy.yaml": "7dd40538fe8bfd35",
	} {
		text, err := os.ReadFile("../../config/samples/" + file)
		if err != nil {
			t.Fatal(err)
		}
		var object v1alpha1.ProxyProfile
		if err := yaml.UnmarshalStrict(text, &object); err != nil {
			t.Fatal(err)
		}
		// The image and the files may change with the sample, not with the agent.
		c := object.Spec.Container
		c.Image, c.Files = "a/b", c.Files[:1]
		c.Files[0].Template = "text"
		if got := HashOf(object.Spec); got != want {
			t.Errorf("%s: hash %s, was %s: all proxies of all nodes would be upgraded by an update of the agent", file, got, want)
		}
	}
	known, err := os.ReadFile("testdata/fields.txt")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Fields(string(known)), fieldsOf("spec", reflect.TypeFor[Spec]())); diff != "" {
		t.Errorf("fields (-known +now):\n%s", diff)
	}
}

// fieldsOf returns the names of all fields that a type is written with.
func fieldsOf(path string, of reflect.Type) []string {
	for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
		of = of.Elem()
	}
	if of.Kind() != reflect.Struct || !strings.HasPrefix(of.PkgPath(), "istio-pod-network-controller/") {
		return []string{path}
	}
	var fields []string
	for field := range of.Fields() {
		fields = append(fields, fieldsOf(path+"."+field.Tag.Get("json"), field.Type)...)
	}
	return fields
}
