// Package charttest proves what the chart renders: golden files, strict decoding, the schema's refusals and the flags of `run`.
package charttest

import (
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/releaseutil"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

const (
	chartDir = "../../../../chart/istio-pod-network-controller"
	name     = "istio-pod-network-controller"
)

func load(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.Load(chartDir)
	if err != nil {
		t.Fatalf("load chart: %v", err)
	}
	return c
}

// install renders the chart as `helm install` would, without a cluster: values are merged and checked against the schema. Kinds
// (group/version/kind) are what the cluster has in addition to the common ones.
func install(t *testing.T, values string, kinds ...string) (*release.Release, error) {
	t.Helper()
	return installOn(t, "", values, kinds...)
}

// installOn is install on a cluster that says this version of itself; empty means v1.36.0.
func installOn(t *testing.T, version, values string, kinds ...string) (*release.Release, error) {
	t.Helper()
	if version == "" {
		version = "v1.36.0"
	}
	parsed, err := chartutil.ReadValues([]byte(values))
	if err != nil {
		t.Fatalf("read values: %v", err)
	}
	client := action.NewInstall(&action.Configuration{Log: t.Logf})
	client.ClientOnly, client.DryRun, client.APIVersions = true, true, kinds
	client.ReleaseName, client.Namespace = name, name
	client.KubeVersion = &chartutil.KubeVersion{Version: version, Major: "1", Minor: "36"}
	return client.RunWithContext(t.Context(), load(t), parsed)
}

// documents are the rendered objects in the order of the manifest.
func documents(t *testing.T, values string) []string {
	t.Helper()
	rel, err := install(t, values)
	if err != nil {
		t.Fatalf("render: %v", err)
	}
	split := releaseutil.SplitManifests(rel.Manifest)
	keys := make([]string, 0, len(split))
	for key := range split {
		keys = append(keys, key)
	}
	sort.Sort(releaseutil.BySplitManifestsOrder(keys))
	docs := make([]string, 0, len(keys))
	for _, key := range keys {
		docs = append(docs, split[key])
	}
	return docs
}

// daemonSet is the rendered DaemonSet of the agent, decoded strictly.
func daemonSet(t *testing.T, values string) *appsv1.DaemonSet {
	t.Helper()
	for _, doc := range documents(t, values) {
		if ds, ok := decode(t, doc).(*appsv1.DaemonSet); ok && isAgent(ds) {
			return ds
		}
	}
	t.Fatal("the chart renders no DaemonSet of the agent")
	return nil
}

// isAgent tells the agent's DaemonSet from those of proxies that pods share.
func isAgent(ds *appsv1.DaemonSet) bool { return ds.Spec.Template.Spec.Containers[0].Name == "agent" }

// decode turns a document into its Kubernetes type; an unknown or doubled field is an error. Nil: not a type of Kubernetes itself.
func decode(t *testing.T, doc string) runtime.Object {
	t.Helper()
	var head runtime.TypeMeta
	if err := yaml.Unmarshal([]byte(doc), &head); err != nil {
		t.Fatalf("not YAML: %v\n%s", err, doc)
	}
	if !scheme.Scheme.Recognizes(head.GroupVersionKind()) {
		return nil
	}
	strict := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, json.SerializerOptions{Yaml: true, Strict: true})
	object, _, err := strict.Decode([]byte(doc), nil, nil)
	if err != nil {
		t.Fatalf("decode %s: %v\n%s", head.Kind, err, doc)
	}
	return object
}

// cases are the value sets of testdata, by name.
func cases(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.values.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("find value sets: %d found, %v", len(files), err)
	}
	sets := make(map[string]string, len(files))
	for _, file := range files {
		sets[strings.TrimSuffix(filepath.Base(file), ".values.yaml")] = read(t, file)
	}
	return sets
}
