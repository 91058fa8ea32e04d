package admissiontest

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

// specs are profiles of one sort, by what they are.
type specs struct {
	Common         map[string]any
	Taken, Refused map[string]struct {
		Spec map[string]any
		Says string
	}
}

// definesSidecars installs the definitions, which the API server has to take: it computes what their rules may cost. Then it makes objects.
func (s *server) definesSidecars(t *testing.T) {
	s.define(t, definitions()...)
	s.install(t, "proxies: {enabled: true}")
	version := schema.GroupVersion{Group: apiGroup, Version: "v1alpha1"}
	profiles, proxies := s.dynamic.Resource(version.WithResource("proxyprofiles")), s.dynamic.Resource(version.WithResource("managedproxies")).Namespace("default")
	eventually(t, "the API server knows the kinds", func(ctx context.Context) error {
		_, errProfiles := profiles.List(ctx, metav1.ListOptions{})
		_, errProxies := proxies.List(ctx, metav1.ListOptions{})
		return errors.Join(errProfiles, errProxies)
	})
	text, err := os.ReadFile("testdata/profiles.yaml")
	must(t, err)
	var all map[string]specs
	must(t, yaml.UnmarshalStrict(text, &all))
	for sort, group := range all {
		t.Run(sort, func(t *testing.T) {
			if sort == "managed proxies" {
				group.check(t, proxies, version.WithKind("ManagedProxy"))
			} else {
				group.check(t, profiles, version.WithKind("ProxyProfile"))
			}
		})
	}
	samples, err := filepath.Glob("../../../../config/samples/proxy-profile*.yaml")
	if err != nil || len(samples) < 5 {
		t.Fatalf("samples %q, %v", samples, err)
	}
	for _, sample := range samples {
		t.Run(filepath.Base(sample), func(t *testing.T) { createsSample(t, profiles, sample) })
	}
	t.Run("columns", s.showsImages)
	t.Run("counts of proxies", func(t *testing.T) {
		s.storesOldStatus(t, profiles, "haproxy")
		takesCounts(t, profiles)
	})
	t.Run("changes", func(t *testing.T) { changesProfile(t, profiles) })
}

// check makes an object of each specification, as kubectl does.
func (g specs) check(t *testing.T, to dynamic.ResourceInterface, kind schema.GroupVersionKind) {
	for name, c := range g.Taken {
		t.Run(name, func(t *testing.T) {
			made, err := g.create(t, to, kind, c.Spec)
			if text, _ := yaml.Marshal(made); err != nil || !strings.Contains(string(text), c.Says) {
				t.Errorf("error %v, want %q in\n%s", err, c.Says, text)
			}
		})
	}
	for name, c := range g.Refused {
		t.Run(name, func(t *testing.T) {
			_, err := g.create(t, to, kind, c.Spec)
			expectDenied(t, err, c.Says)
		})
	}
}

func (g specs) create(t *testing.T, to dynamic.ResourceInterface, kind schema.GroupVersionKind, spec map[string]any) (*unstructured.Unstructured, error) {
	t.Helper()
	all := maps.Clone(g.Common)
	maps.Copy(all, spec)
	object := &unstructured.Unstructured{Object: map[string]any{"spec": all}}
	object.SetGroupVersionKind(kind)
	object.SetGenerateName("x-")
	return to.Create(t.Context(), object, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
}

// createsSample makes a profile that people start from. No field of it may be unknown.
func createsSample(t *testing.T, profiles dynamic.ResourceInterface, file string) {
	text, err := os.ReadFile(file)
	must(t, err)
	sample := &unstructured.Unstructured{}
	must(t, yaml.UnmarshalStrict(text, &sample.Object))
	if _, err := profiles.Create(t.Context(), sample, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}); err != nil {
		t.Error(err)
	}
}

// showsImages wants kubectl to show each profile's image, whichever kind of proxy it has.
func (s *server) showsImages(t *testing.T) {
	var table metav1.Table
	text, err := s.admin.CoreV1().RESTClient().Get().AbsPath("/apis/"+apiGroup+"/v1alpha1/proxyprofiles").
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(t.Context())
	must(t, errors.Join(err, json.Unmarshal(text, &table)))
	got := map[any]any{}
	for _, row := range table.Rows {
		got[row.Cells[0]] = row.Cells[1]
	}
	if table.ColumnDefinitions[1].Name != "Image" || got["haproxy"] != "localhost/haproxy:1" || got["istio"] != "docker.io/istio/proxyv2:1.31.0" || got["haproxy-shared"] != nil {
		t.Errorf("columns %v, images %v", table.ColumnDefinitions, got)
	}
}
