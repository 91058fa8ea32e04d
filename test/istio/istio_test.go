// Package istio holds tests beside real Istio: its injector, its charts and what istioctl makes of them.
package istio

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	meshconfig "istio.io/api/mesh/v1alpha1"
	"istio.io/istio/operator/pkg/render"
	"istio.io/istio/pkg/config/mesh"
	"istio.io/istio/pkg/kube/inject"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// istio is an installation by istioctl.
type istio struct {
	objects   []unstructured.Unstructured
	templates inject.Templates
	values    inject.ValuesConfig
	mesh      *meshconfig.MeshConfig
	revision  string
}

// install renders what istioctl would install of a file, with --set.
func install(t *testing.T, operator string, set ...string) *istio {
	t.Helper()
	var files []string
	if operator != "" {
		file := filepath.Join(t.TempDir(), "operator.yaml")
		if err := os.WriteFile(file, []byte(operator), 0o600); err != nil {
			t.Fatal(err)
		}
		files = []string{file}
	}
	sets, _, err := render.GenerateManifest(files, set, false, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	i := &istio{}
	for _, s := range sets {
		for _, m := range s.Manifests {
			i.objects = append(i.objects, *m.Unstructured)
		}
	}
	i.read(t)
	return i
}

// read takes from the ConfigMaps what the injector does.
func (i *istio) read(t *testing.T) {
	t.Helper()
	for _, o := range i.objects {
		if strings.HasPrefix(o.GetName(), "istio-sidecar-injector") && o.GetKind() == "ConfigMap" {
			i.revision = o.GetLabels()["istio.io/rev"]
		}
	}
	suffix := ""
	if i.revision != "default" {
		suffix = "-" + i.revision
	}
	injector, meshText := i.configMap(t, "istio-sidecar-injector"+suffix), i.configMap(t, "istio"+suffix)
	config, err := inject.UnmarshalConfig([]byte(injector["config"]))
	if err != nil {
		t.Fatal(err)
	}
	if i.templates, err = inject.ParseTemplates(config.RawTemplates); err != nil {
		t.Fatal(err)
	}
	if i.values, err = inject.NewValuesConfig(injector["values"]); err != nil {
		t.Fatal(err)
	}
	if i.mesh, err = mesh.ApplyMeshConfigDefaults(meshText["mesh"]); err != nil {
		t.Fatal(err)
	}
}

func (i *istio) configMap(t *testing.T, name string) map[string]string {
	t.Helper()
	for _, o := range i.objects {
		if o.GetKind() == "ConfigMap" && o.GetName() == name {
			data, _, err := unstructured.NestedStringMap(o.Object, "data")
			if err != nil {
				t.Fatal(err)
			}
			return data
		}
	}
	t.Fatalf("no ConfigMap %s", name)
	return nil
}

// has reports whether an object was rendered.
func (i *istio) has(kind, name string) bool {
	for _, o := range i.objects {
		if o.GetKind() == kind && o.GetName() == name {
			return true
		}
	}
	return false
}

// inject returns what Istio's injector makes of a pod.
func (i *istio) inject(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	raw, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := inject.IntoResourceFile(nil, i.templates, i.values, i.revision, i.mesh, strings.NewReader(string(raw)), &out, func(text string) { t.Log(text) }); err != nil {
		t.Fatal(err)
	}
	return decode(t, out.String())
}
