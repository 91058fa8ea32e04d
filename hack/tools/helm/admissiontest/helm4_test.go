package admissiontest

import (
	"fmt"
	"testing"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/kube"
	v1 "helm.sh/helm/v4/pkg/release/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"istio-pod-network-controller/hack/tools/helm/render"
)

// everyObject are values with which the chart renders each kind of object that the API server has.
const everyObject = `{cni: install, select: either, startupTaint: true, fullnameOverride: redirector, resourceQuota: {enabled: true}, inspect: {enabled: true},
  metrics: {secure: true, dashboard: {enabled: true}}, sidecars: {enabled: true, secrets: [registry], istio: {enabled: true, image: a},
    shared: [{profile: edge, image: a, command: [b], lifecycle: {}}]},
  admission: {enabled: true, waitContainer: true, requiredPlugins: true, restrictAgent: true, allowOptOut: false}}`

// Helm 4 applies objects by the API server, as the manager helm. Nothing conflicts with what Helm itself has applied, and an upgrade without a change
// changes no object.
func TestHelm4_upgradesWithoutAChange_changeNothing(t *testing.T) {
	kube.ManagedFieldsManager = "helm" // as the program
	s := startServer(t)
	s.namespace(t, release, nil, nil)
	s.namespace(t, "istio-system", nil, nil)
	namespace, directory, yes := release, t.TempDir(), true
	flags := genericclioptions.NewConfigFlags(false)
	flags.APIServer, flags.BearerToken, flags.Insecure, flags.Namespace, flags.CacheDir = &s.config.Host, &s.config.BearerToken, &yes, &namespace, &directory
	helm := action.NewConfiguration()
	chart, errChart := loader.Load(chartDir)
	values, errValues := render.Values(everyObject)
	if err := helm.Init(flags, release, "memory"); err != nil || errChart != nil || errValues != nil {
		t.Fatal(err, errChart, errValues)
	}
	install := action.NewInstall(helm)
	install.ReleaseName, install.Namespace, install.WaitStrategy = release, release, kube.HookOnlyStrategy
	made, err := install.RunWithContext(t.Context(), chart, values)
	must(t, err)
	before := s.versions(t, made.(*v1.Release).Manifest)
	upgrade := action.NewUpgrade(helm)
	upgrade.Namespace, upgrade.WaitStrategy = release, kube.HookOnlyStrategy
	again, err := upgrade.RunWithContext(t.Context(), release, chart, values)
	must(t, err)
	same(t, before, s.versions(t, again.(*v1.Release).Manifest), "objects")
}

// versions are the versions of a manifest's objects on the server, and who manages their fields.
func (s *server) versions(t *testing.T, manifest string) map[string]string {
	t.Helper()
	found, resource := map[string]string{}, s.resources(t)
	for _, object := range objects(t, render.Release{Manifest: manifest}) {
		from, err := resource(object)
		if err != nil || from == nil {
			t.Fatalf("%s: %v", object.GetKind(), err)
		}
		stored, err := from.Get(t.Context(), object.GetName(), metav1.GetOptions{})
		must(t, err)
		managers := names(stored.GetManagedFields(), func(f metav1.ManagedFieldsEntry) string {
			return f.Manager + " by " + string(f.Operation) + f.Subresource
		})
		found[object.GetKind()+" "+object.GetName()] = fmt.Sprintf("version %s, generation %d, managed by %q", stored.GetResourceVersion(), stored.GetGeneration(), managers)
	}
	return found
}
