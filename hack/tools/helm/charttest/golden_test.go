package charttest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"istio-pod-network-controller/hack/tools/helm/render"
)

// Each value set of testdata: what a plain installation gives, what OpenShift has otherwise, and everything switched on.
// Objects that are the plain installation's are left out of the others.
func TestGolden(t *testing.T) {
	plain := rendering(t, "{}")
	for name, values := range cases(t) {
		t.Run(name, func(t *testing.T) {
			made := rendering(t, values)
			var docs []string
			for _, doc := range made.Documents() {
				if name == "kubernetes" || !strings.Contains(plain.Manifest, doc) {
					docs = append(docs, doc)
				}
			}
			golden(t, name+".golden.yaml", "---\n"+strings.Join(docs, "---\n"))
			golden(t, name+".notes.txt", made.Notes+"\n")
		})
	}
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	file = filepath.Join("testdata", file)
	if *update {
		must(t, os.WriteFile(file, []byte(got), 0o644))
		return
	}
	same(t, read(t, file), got, "%s differs, and `make generate` writes it anew", file)
}

func TestLintIsStrictlyClean(t *testing.T) {
	for version, helm := range render.Engines() {
		for name, values := range cases(t) {
			t.Run(version+", "+name, func(t *testing.T) {
				for _, fault := range helm.Lint(chartDir, parse(t, values)) {
					t.Error(fault)
				}
			})
		}
	}
}

// What Artifact Hub reads must be what it can read, and name what the chart renders.
func TestTheChartDescribesItself(t *testing.T) {
	var crds []struct{ Kind, Version, Name, DisplayName, Description string }
	var images []struct{ Name, Image string }
	for key, into := range map[string]any{"crds": &crds, "images": &images, "changes": &[]struct{ Kind, Description string }{}, "links": &[]struct{ Name, URL string }{}} {
		text, _ := at(about(t), "annotations", "artifacthub.io/"+key).(string)
		must(t, yaml.UnmarshalStrict([]byte(text), into))
	}
	made, listed, defined := rendering(t, withSidecars), map[string]string{}, map[string]string{}
	for _, crd := range crds {
		listed[crd.Name] = crd.Kind
	}
	for _, crd := range definitions(t) {
		defined[crd.Name] = crd.Spec.Names.Kind
	}
	same(t, defined, listed, "definitions")
	if image := made.agent(t).Containers[0].Image; len(images) != 2 || images[0].Image != image || images[1].Image != image+"-iptables" {
		t.Errorf("images are %v, the chart renders %s", images, image)
	}
}
