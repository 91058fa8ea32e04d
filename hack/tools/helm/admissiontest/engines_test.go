package admissiontest

import (
	"encoding/json"
	"testing"

	action3 "helm.sh/helm/v3/pkg/action"
	chart3 "helm.sh/helm/v3/pkg/chart"
	loader3 "helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/kube"
	v1 "helm.sh/helm/v4/pkg/release/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/jsonmergepatch"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"

	"istio-pod-network-controller/hack/tools/helm/render"
)

// engine puts the chart on a cluster, or a change of its values, and returns the objects of the release.
type engine interface {
	install(t *testing.T, values string) []*unstructured.Unstructured
	upgrade(t *testing.T, values string) ([]*unstructured.Unstructured, error)
}

// flags are those by which Helm and kubectl find the cluster.
func (s *server) flags(t *testing.T) *genericclioptions.ConfigFlags {
	t.Helper()
	namespace, directory, yes := release, t.TempDir(), true
	flags := genericclioptions.NewConfigFlags(false)
	flags.APIServer, flags.BearerToken, flags.Insecure, flags.Namespace, flags.CacheDir = &s.config.Host, &s.config.BearerToken, &yes, &namespace, &directory
	return flags
}

type withHelm3 struct {
	config *action3.Configuration
	chart  *chart3.Chart
	reuse  bool // --reuse-values
}

// helm3 is the release as Helm 3 keeps it, in Secrets, where Helm 4 finds it.
func (s *server) helm3(t *testing.T) withHelm3 {
	t.Helper()
	config := &action3.Configuration{}
	must(t, config.Init(s.flags(t), release, "secret", t.Logf))
	chart, err := loader3.Load(chartDir)
	must(t, err)
	return withHelm3{config: config, chart: chart}
}

func (h withHelm3) install(t *testing.T, values string) []*unstructured.Unstructured {
	t.Helper()
	install, parsed := action3.NewInstall(h.config), parse(t, values)
	install.ReleaseName, install.Namespace = release, release
	made, err := install.RunWithContext(t.Context(), h.chart, parsed)
	must(t, err)
	return objects(t, render.Release{Manifest: made.Manifest})
}

func (h withHelm3) upgrade(t *testing.T, values string) ([]*unstructured.Unstructured, error) {
	t.Helper()
	upgrade, parsed := action3.NewUpgrade(h.config), parse(t, values)
	upgrade.Namespace, upgrade.ReuseValues = release, h.reuse
	made, err := upgrade.RunWithContext(t.Context(), release, h.chart, parsed)
	if err != nil {
		return nil, err
	}
	return objects(t, render.Release{Manifest: made.Manifest}), nil
}

type withHelm4 struct {
	config *action.Configuration
	force  bool
	reuse  bool
}

// helm4 is the same by Helm 4, with --force-conflicts or without.
func (s *server) helm4(t *testing.T, force bool) withHelm4 {
	t.Helper()
	kube.ManagedFieldsManager = "helm" // as the program
	config := action.NewConfiguration()
	must(t, config.Init(s.flags(t), release, "secret"))
	return withHelm4{config: config, force: force}
}

func (h withHelm4) install(t *testing.T, values string) []*unstructured.Unstructured {
	t.Helper()
	made, err := h.tryInstall(t, values)
	must(t, err)
	return made
}

func (h withHelm4) tryInstall(t *testing.T, values string) ([]*unstructured.Unstructured, error) {
	t.Helper()
	chart, err := loader.Load(chartDir)
	must(t, err)
	install := action.NewInstall(h.config)
	install.ReleaseName, install.Namespace, install.WaitStrategy, install.ForceConflicts = release, release, kube.HookOnlyStrategy, h.force
	made, err := install.RunWithContext(t.Context(), chart, parse(t, values))
	if err != nil {
		return nil, err
	}
	return objects(t, render.Release{Manifest: made.(*v1.Release).Manifest}), nil
}

func (h withHelm4) upgrade(t *testing.T, values string) ([]*unstructured.Unstructured, error) {
	t.Helper()
	chart, err := loader.Load(chartDir)
	must(t, err)
	upgrade := action.NewUpgrade(h.config)
	upgrade.Namespace, upgrade.WaitStrategy, upgrade.ForceConflicts, upgrade.ReuseValues = release, kube.HookOnlyStrategy, h.force, h.reuse
	made, err := upgrade.RunWithContext(t.Context(), release, chart, parse(t, values))
	if err != nil {
		return nil, err
	}
	return objects(t, render.Release{Manifest: made.(*v1.Release).Manifest}), nil
}

// withKubectl is `helm template --include-crds`, applied by kubectl: on the client, or on the server as a manager.
type withKubectl struct {
	*server
	manager string
}

func (k withKubectl) install(t *testing.T, values string) []*unstructured.Unstructured {
	t.Helper()
	k.define(t, definitions()...)
	made, err := k.upgrade(t, values)
	must(t, err)
	return made
}

func (k withKubectl) upgrade(t *testing.T, values string) ([]*unstructured.Unstructured, error) {
	t.Helper()
	made := rendered(t, values, k.kinds(t))
	if k.manager != "" {
		return made, k.apply(t, k.manager, made)
	}
	resource := k.resources(t)
	for _, object := range made {
		to, err := resource(object)
		must(t, err)
		appliesOnTheClient(t, to, object)
	}
	return made, nil
}

// appliesOnTheClient does what `kubectl apply` does without --server-side: it keeps the text in an annotation, and patches what differs from it.
func appliesOnTheClient(t *testing.T, to dynamic.ResourceInterface, object *unstructured.Unstructured) {
	t.Helper()
	given, wanted := asJSON(object.Object), object.DeepCopy()
	notes := wanted.GetAnnotations()
	if notes == nil {
		notes = map[string]string{}
	}
	notes["kubectl.kubernetes.io/last-applied-configuration"] = given
	wanted.SetAnnotations(notes)
	const manager = "kubectl-client-side-apply"
	current, err := to.Get(t.Context(), object.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = to.Create(t.Context(), wanted, metav1.CreateOptions{FieldManager: manager})
		must(t, err)
		return
	}
	must(t, err)
	before, after, now := []byte(current.GetAnnotations()["kubectl.kubernetes.io/last-applied-configuration"]), []byte(asJSON(wanted.Object)), []byte(asJSON(current.Object))
	kind, patch := types.MergePatchType, []byte(nil)
	if typed, errKind := scheme.Scheme.New(object.GroupVersionKind()); errKind == nil {
		meta, errMeta := strategicpatch.NewPatchMetaFromStruct(typed)
		must(t, errMeta)
		kind = types.StrategicMergePatchType
		patch, err = strategicpatch.CreateThreeWayMergePatch(before, after, now, meta, true)
	} else {
		patch, err = jsonmergepatch.CreateThreeWayJSONMergePatch(before, after, now)
	}
	must(t, err)
	_, err = to.Patch(t.Context(), object.GetName(), kind, patch, metav1.PatchOptions{FieldManager: manager})
	must(t, err)
}

func parse(t *testing.T, values string) map[string]any {
	t.Helper()
	parsed, err := render.Values(values)
	must(t, err)
	return parsed
}

// asJSON is a value as it is compared and sent.
func asJSON(value any) string {
	made, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}
	return string(made)
}
