// Package charttest proves what the chart renders by Helm 3 and Helm 4: golden files, strict decoding, refusals, rights, and the flags of `run`.
package charttest

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"istio-pod-network-controller/hack/tools/helm/render"
)

const (
	rootDir    = "../../../.."
	chartDir   = rootDir + "/chart/istio-pod-network-controller"
	docsDir    = rootDir + "/docs"
	configDir  = rootDir + "/config"
	name       = render.Name
	mutating   = "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"
	validating = "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"
	openshift  = "security.openshift.io/v1"
	none       = "" // an old cluster has only common kinds
	scc        = "SecurityContextConstraints"
)

var (
	binary = flag.String("binary", rootDir+"/build/istio-pod-network-controller", "the agent, whose flags are compared with the chart")
	update = flag.Bool("update", false, "write the golden files instead of comparing with them")
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// same compares what there should be with what there is, and names it in an error.
func same(t *testing.T, want, got any, format string, args ...any) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(right{}), cmpopts.EquateEmpty(), cmpopts.SortSlices(less)); diff != "" {
		t.Errorf(format+" (-want +got):\n%s", append(args, diff)...)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	return string(text)
}

// table reads a list of cases of testdata.
func table(t *testing.T, file string, into any) {
	t.Helper()
	must(t, yaml.UnmarshalStrict([]byte(read(t, "testdata/"+file)), into))
}

func parse(t *testing.T, values string) map[string]any {
	t.Helper()
	parsed, err := render.Values(values)
	if err != nil {
		t.Fatalf("read values: %v\n%s", err, values)
	}
	return parsed
}

// about is the chart's Chart.yaml.
func about(t *testing.T) map[string]any {
	t.Helper()
	return parse(t, read(t, chartDir+"/Chart.yaml"))
}

func yamlOf(t *testing.T, object any) string {
	t.Helper()
	text, err := yaml.Marshal(object)
	must(t, err)
	return string(text)
}

// install renders the chart for values, by both versions of Helm, as installAs.
func install(t *testing.T, values string, kinds ...string) (render.Release, error) {
	t.Helper()
	return installAs(t, render.Request{Chart: chartDir, Values: parse(t, values), Kinds: kinds})
}

// installAs renders a request. Without kinds the cluster has the policies that current clusters have.
func installAs(t *testing.T, request render.Request) (render.Release, error) {
	t.Helper()
	if len(request.Kinds) == 0 {
		request.Kinds = []string{validating, mutating}
	}
	release, err := render.Both(t.Context(), request)
	if errors.Is(err, render.ErrDiffers) {
		t.Fatalf("%v\nvalues: %s", err, yamlOf(t, request.Values))
	}
	return release, err
}

// refuses wants an error of the chart that has these words.
func refuses(t *testing.T, values, words string) {
	t.Helper()
	if _, err := install(t, values); err == nil || !strings.Contains(err.Error(), words) {
		t.Errorf("%s: error %v, want %q in it", values, err, words)
	}
}

// rendered is the chart for values, with its objects decoded strictly.
type rendered struct {
	render.Release
	objects []runtime.Object
}

func rendering(t *testing.T, values string, kinds ...string) rendered {
	t.Helper()
	release, err := install(t, values, kinds...)
	if err != nil {
		t.Fatalf("render %s: %v", values, err)
	}
	return decoded(t, release)
}

func decoded(t *testing.T, release render.Release) rendered {
	t.Helper()
	r := rendered{Release: release}
	for _, doc := range release.Documents() {
		r.objects = append(r.objects, decode(t, doc))
	}
	return r
}

// decode turns a document into its type of Kubernetes; an unknown or doubled field is an error. Types of others are unstructured.
func decode(t *testing.T, doc string) runtime.Object {
	t.Helper()
	custom := &unstructured.Unstructured{}
	if err := yaml.UnmarshalStrict([]byte(doc), &custom.Object); err != nil {
		t.Fatalf("not YAML: %v\n%s", err, doc)
	}
	kind := custom.GroupVersionKind()
	if kind.Group == apiextensionsv1.GroupName {
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict([]byte(doc), &crd); err != nil {
			t.Fatalf("decode %s: %v", custom.GetName(), err)
		}
		return &crd
	}
	if !scheme.Scheme.Recognizes(kind) {
		return custom
	}
	strict := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, json.SerializerOptions{Yaml: true, Strict: true})
	object, _, err := strict.Decode([]byte(doc), nil, nil)
	if err != nil {
		t.Fatalf("decode %s: %v\n%s", kind, err, doc)
	}
	return object
}

// all are the objects of a type.
func all[T runtime.Object](objects []runtime.Object) (found []T) {
	for _, o := range objects {
		if typed, ok := o.(T); ok {
			found = append(found, typed)
		}
	}
	return found
}

// one is the only object of a type.
func one[T runtime.Object](t *testing.T, objects []runtime.Object) T {
	t.Helper()
	found := all[T](objects)
	if len(found) != 1 {
		t.Fatalf("%d objects of type %T, want 1", len(found), *new(T))
	}
	return found[0]
}

// custom is an object that is not of Kubernetes' own kinds, or nil. Without a name it is the only one of its kind.
func (r rendered) custom(t *testing.T, kind, name string) map[string]any {
	t.Helper()
	var found map[string]any
	for _, o := range all[*unstructured.Unstructured](r.objects) {
		if o.GetKind() == kind && (name == "" || o.GetName() == name) {
			if found != nil {
				t.Errorf("there is a second %s", kind)
			}
			found = o.Object
		}
	}
	return found
}

// isAgent tells the agent's DaemonSet from the DaemonSets of proxies that pods share.
func isAgent(ds *appsv1.DaemonSet) bool { return ds.Spec.Template.Spec.Containers[0].Name == "agent" }

func (r rendered) daemonSet(t *testing.T) *appsv1.DaemonSet {
	t.Helper()
	for _, ds := range all[*appsv1.DaemonSet](r.objects) {
		if isAgent(ds) {
			return ds
		}
	}
	t.Fatal("the chart renders no DaemonSet of the agent")
	return nil
}

// agent is the agent's pod.
func (r rendered) agent(t *testing.T) corev1.PodSpec {
	t.Helper()
	return r.daemonSet(t).Spec.Template.Spec
}

// arguments are the agent's flags by name; a flag that is given twice is a failure.
func (r rendered) arguments(t *testing.T) map[string]string {
	t.Helper()
	args := r.agent(t).Containers[0].Args
	if args[0] != "run" {
		t.Fatalf("arguments are %q, want `run` first", args)
	}
	byName := make(map[string]string, len(args))
	for _, arg := range args[1:] {
		flag, value, ok := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		if _, double := byName[flag]; double || !ok || !strings.HasPrefix(arg, "--") {
			t.Fatalf("argument %q: given twice, or not of the form --flag=value", arg)
		}
		byName[flag] = value
	}
	return byName
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

// expectWords wants each of the words in a text, or none of them.
func expectWords(t *testing.T, text string, there bool, words ...string) {
	t.Helper()
	for _, word := range words {
		if strings.Contains(text, word) != there {
			t.Errorf("%q is there: %v, want %v, in\n%s", word, !there, there, text)
		}
	}
}
