package admissiontest

import (
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/kube"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// withProxies are values of a release with the profile istio; more is behind them.
func withProxies(more string) string {
	return "{proxies: {enabled: true, istio: {enabled: true, image: a}}, admission: {restrictAgent: true}" + more + "}"
}

// Proxies are switched on by an upgrade: it needs the definitions, and says so where a chart without any, or --skip-crds, has left none.
func TestRelease_proxiesByAnUpgrade(t *testing.T) {
	s := startServer(t)
	s.namespace(t, release, nil, nil)
	s.namespace(t, "istio-system", nil, nil)
	// One that is new for each command: a command of Helm asks once what kinds the cluster has.
	for name, helm := range map[string]func() engine{"Helm 3": func() engine { return s.helm3(t) }, "Helm 4": func() engine { return s.helm4(t, false) }} {
		t.Run(name, func(t *testing.T) {
			made := helm().install(t, "{}")
			s.undefine(t, definitions()...)
			_, err := helm().upgrade(t, withProxies(""))
			expectDenied(t, err, "run `helm show crds CHART | kubectl apply --server-side -f -` first")
			s.define(t, definitions()...)
			more, err := helm().upgrade(t, withProxies(""))
			must(t, err)
			s.wantProfiles(t, "istio")
			s.remove(t, append(made, more...))
		})
	}
}

// A release keeps its values by --reuse-values while the chart stays the same.
func TestRelease_reusedValues_ofTheSameChart_stay(t *testing.T) {
	s := startServer(t)
	s.namespace(t, release, nil, nil)
	three, four := s.helm3(t), s.helm4(t, false)
	three.reuse, four.reuse = true, true
	for name, helm := range map[string]engine{"Helm 3": three, "Helm 4": four} {
		t.Run(name, func(t *testing.T) {
			made := helm.install(t, "{agent.logLevel: debug, redirection.defaults: {ipv6: direct}}")
			more, err := helm.upgrade(t, "hooks.failOpen: true")
			must(t, err)
			for _, argument := range []string{"--log-level=debug", "--ipv6=direct", "--fail-open=true"} {
				s.wantArgument(t, argument)
			}
			s.remove(t, append(made, more...))
		})
	}
}

// What docs/upgrade.md and docs/install.md say of Helm 4: who changes what Helm has applied, by whatever tool, is another manager.
func TestHelm4_conflictsWithWhatPeopleChange(t *testing.T) {
	s := startServer(t)
	s.namespace(t, release, nil, nil)
	four, forced := s.helm4(t, false), s.helm4(t, true)
	made := four.install(t, "{}")
	before, err := s.admin.AppsV1().DaemonSets(release).Get(t.Context(), release, metav1.GetOptions{})
	must(t, err)
	args := strings.Replace(asJSON(before.Spec.Template.Spec.Containers[0].Args), "--log-level=info", "--log-level=error", 1)
	s.patchAgent(t, "kubectl-rollout", `{"spec": {"template": {"spec": {"containers": [{"name": "agent", "args": `+args+`}]}}}}`)
	const conflict = `conflict with "kubectl-rollout" using apps/v1: .spec.template.spec.containers[name="agent"].args`
	_, err = four.upgrade(t, "{agent.logLevel: debug}")
	expectDenied(t, err, conflict)
	s.wantArgument(t, "--log-level=error")
	expectDenied(t, four.rollback(1), conflict)
	_, err = forced.upgrade(t, "{agent.logLevel: debug}")
	must(t, err)
	s.wantArgument(t, "--log-level=debug")
	_, err = four.upgrade(t, "{}")
	must(t, err)

	must(t, four.uninstall())
	s.wantGone(t, made)
	crds := s.dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	_, err = crds.Patch(t.Context(), "proxyprofiles."+apiGroup, types.JSONPatchType, []byte(`[{"op": "remove", "path": "/spec/versions/0/additionalPrinterColumns/0"}]`),
		metav1.PatchOptions{FieldManager: "kubectl-edit"})
	must(t, err)
	_, err = four.tryInstall(t, "{}")
	expectDenied(t, err, `conflict with "kubectl-edit"`)
	forced.install(t, "{}")
}

func (h withHelm4) rollback(revision int) error {
	rollback := action.NewRollback(h.config)
	rollback.Version, rollback.WaitStrategy, rollback.ForceConflicts, rollback.ServerSideApply = revision, kube.HookOnlyStrategy, h.force, "auto"
	return rollback.Run(release)
}

func (h withHelm4) uninstall() error {
	uninstall := action.NewUninstall(h.config)
	uninstall.WaitStrategy = kube.HookOnlyStrategy
	_, err := uninstall.Run(release)
	return err
}

// patchAgent changes the agent's DaemonSet as kubectl does, by a command of its own name.
func (s *server) patchAgent(t *testing.T, manager, patch string) {
	t.Helper()
	_, err := s.admin.AppsV1().DaemonSets(release).Patch(t.Context(), release, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: manager})
	must(t, err)
}

// wantArgument wants an argument of the agent.
func (s *server) wantArgument(t *testing.T, argument string) {
	t.Helper()
	ds, err := s.admin.AppsV1().DaemonSets(release).Get(t.Context(), release, metav1.GetOptions{})
	must(t, err)
	if agent := ds.Spec.Template.Spec.Containers[0]; !strings.Contains(strings.Join(agent.Args, " ")+" ", argument+" ") {
		t.Errorf("arguments are %q, want %s", agent.Args, argument)
	}
}

func (s *server) profiles() dynamic.ResourceInterface {
	return s.dynamic.Resource(schema.GroupVersionResource{Group: apiGroup, Version: "v1alpha1", Resource: "proxyprofiles"})
}

func (s *server) wantProfiles(t *testing.T, want ...string) {
	t.Helper()
	list, err := s.profiles().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	same(t, want, names(list.Items, func(p unstructured.Unstructured) string { return p.GetName() }), "profiles")
}

// wantGone wants no object of a release to be left, nor what Helm knows of it.
func (s *server) wantGone(t *testing.T, made []*unstructured.Unstructured) {
	t.Helper()
	resource := s.resources(t)
	for _, object := range made {
		from, err := resource(object)
		must(t, err)
		if _, err := from.Get(t.Context(), object.GetName(), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("%s %s is left: %v", object.GetKind(), object.GetName(), err)
		}
	}
	secrets, err := s.admin.CoreV1().Secrets(release).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	same(t, []string(nil), names(secrets.Items, func(s corev1.Secret) string { return s.Name }), "Secrets")
}
