package admissiontest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/yaml"

	"istio-pod-network-controller/hack/tools/helm/pairs"
	"istio-pod-network-controller/hack/tools/helm/render"
)

const (
	chartDir = "../../../../chart/istio-pod-network-controller"
	// release is the chart's release, its namespace and the name of all of its objects.
	release   = render.Name
	apiGroup  = "pod-network-controller.istio.io"
	condition = apiGroup + "/initialized"
	waitName  = "istio-pod-network-wait"
	plugins   = "required-plugins.noderesource.dev"
)

var errNotYet = errors.New("not yet")

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// same compares what there should be with what there is, and names it in an error.
func same(t *testing.T, want, got any, format string, args ...any) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf(format+" (-want +got):\n%s", append(args, diff)...)
	}
}

// install applies what the chart renders for the kinds that the API server has, and deletes the policies of an earlier call.
func (s *server) install(t *testing.T, values string) {
	t.Helper()
	apply, left := s.applier(t), map[string]bool{}
	for _, object := range rendered(t, values, s.kinds(t)) {
		if object.GetKind() == "ProxyProfile" {
			continue // a sample has its name
		}
		if _, err := apply(object); err != nil {
			t.Fatalf("install %s: %v", object.GetKind(), err)
		}
		left[object.GetKind()+object.GetName()] = true
	}
	for _, resource := range []string{"mutatingadmissionpolicies", "mutatingadmissionpolicybindings", "validatingadmissionpolicies", "validatingadmissionpolicybindings"} {
		policies := s.dynamic.Resource(schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: resource})
		list, err := policies.List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=" + release})
		must(t, err)
		for _, policy := range list.Items {
			if !left[policy.GetKind()+policy.GetName()] {
				must(t, policies.Delete(t.Context(), policy.GetName(), metav1.DeleteOptions{}))
			}
		}
	}
}

// applier returns a function that applies an object, as Helm 4 does, and returns what is stored. Kinds that the API server does not have pass.
func (s *server) applier(t *testing.T, dryRun ...string) func(*unstructured.Unstructured) (*unstructured.Unstructured, error) {
	t.Helper()
	resource := s.resources(t)
	return func(object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
		to, err := resource(object)
		if err != nil || to == nil {
			return nil, err
		}
		return to.Apply(t.Context(), object.GetName(), object, metav1.ApplyOptions{FieldManager: "helm", Force: true, DryRun: dryRun})
	}
}

// resources returns a function that says where an object is, or nil if the API server does not have its kind. It makes namespaces.
func (s *server) resources(t *testing.T) func(*unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	t.Helper()
	groups, err := restmapper.GetAPIGroupResources(s.admin.Discovery())
	must(t, err)
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	return func(object *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
		mapping, err := mapper.RESTMapping(object.GroupVersionKind().GroupKind(), object.GroupVersionKind().Version)
		if meta.IsNoMatchError(err) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		if object.GetNamespace() == "" {
			return s.dynamic.Resource(mapping.Resource), nil
		}
		s.namespace(t, object.GetNamespace(), nil, nil)
		return s.dynamic.Resource(mapping.Resource).Namespace(object.GetNamespace()), nil
	}
}

// kinds are those that the API server has, as group/version/kind.
func (s *server) kinds(t *testing.T) []string {
	t.Helper()
	_, lists, err := s.admin.Discovery().ServerGroupsAndResources()
	must(t, err)
	var kinds []string
	for _, list := range lists {
		kinds = append(kinds, list.GroupVersion)
		for _, r := range list.APIResources {
			kinds = append(kinds, list.GroupVersion+"/"+r.Kind)
		}
	}
	return kinds
}

// rendered are the chart's objects. Both versions of Helm have to agree on them.
func rendered(t *testing.T, values string, kinds []string) []*unstructured.Unstructured {
	t.Helper()
	parsed, err := render.Values(values)
	must(t, err)
	made, err := render.Both(t.Context(), render.Request{Chart: chartDir, Values: parsed, Kinds: kinds})
	must(t, err)
	return objects(t, made)
}

func objects(t *testing.T, made render.Release) (found []*unstructured.Unstructured) {
	t.Helper()
	for _, doc := range made.Documents() {
		object := &unstructured.Unstructured{}
		must(t, yaml.Unmarshal([]byte(doc), object))
		found = append(found, object)
	}
	return found
}

// takesEveryTwoValues has the API server check what every two values of the chart render together, without keeping it: it takes every object, and
// would store it in the words that the chart has.
func (s *server) takesEveryTwoValues(t *testing.T) {
	constraints, errSchema := os.ReadFile(filepath.Join(chartDir, "values.schema.json"))
	text, errText := os.ReadFile(filepath.Join(chartDir, "values.yaml"))
	defaults, errValues := render.Values(string(text))
	cover, err := pairs.Of(constraints, defaults)
	must(t, errors.Join(errSchema, errText, errValues, err))
	s.define(t, monitoring)
	check := s.applier(t, metav1.DryRunAll)
	rows, _ := cover.Rows()
	others := map[string]string{}
	for _, row := range rows {
		values := cover.Values(row)
		kinds := pairs.Clusters()[fmt.Sprint(values[pairs.ClusterPath])]
		delete(values, pairs.ClusterPath)
		text, err := yaml.Marshal(values)
		must(t, err)
		for _, object := range rendered(t, string(text), kinds) {
			stored, err := check(object)
			if err != nil {
				t.Errorf("%s %s: %v, with\n%s", object.GetKind(), object.GetName(), err, text)
				continue
			}
			if stored != nil {
				for _, other := range storedOtherwise(t, object, stored, "helm") {
					path, _, _ := strings.Cut(other, ": ")
					others[object.GetKind()+" "+path] = other
				}
			}
		}
	}
	for of, other := range others {
		t.Errorf("%s: write it out as the API server stores it, which is otherwise: %s", of, other)
	}
	t.Logf("%d sets of values", len(rows))
}

// policies installs the chart with values, and waits until the API server uses the new policies, which have no status that shows it.
// Each configuration is recognised by its waitResources.
func (s *server) policies(t *testing.T, admission, selection string, nonce int) {
	t.Helper()
	memory := fmt.Sprintf("%d1", 4000000+nonce) // no whole number of k
	s.install(t, fmt.Sprintf("{redirection.select: %s, admission: {waitContainer: true, waitResources: {requests: {memory: '%s'}, limits: {memory: '%s'}}%s}}", selection, memory, memory, admission))
	eventually(t, "the API server follows the policies", func(ctx context.Context) error {
		// A pod that every value of select selects.
		pod := shape{namespace: "default", change: changes(annotate(initialize, "true", "sidecar.istio.io/status", "{}"), container("istio-proxy"))}.pod()
		created, err := s.create(ctx, pod, true)
		if err != nil {
			return err
		}
		text, err := json.Marshal(created.Spec.InitContainers)
		if err == nil && !strings.Contains(string(text), `"memory":"`+memory+`"`) {
			err = fmt.Errorf("init containers %s", text)
		}
		return err
	})
}

// untilDenied waits until something is denied in these words: the API server takes up one policy after the other.
func untilDenied(t *testing.T, try func(context.Context) error, words ...string) {
	t.Helper()
	eventually(t, "the API server follows the policies", func(ctx context.Context) error {
		err := try(ctx)
		for _, word := range words {
			if err == nil || !strings.Contains(err.Error(), word) {
				return fmt.Errorf("not denied in the words %q: %w", word, errors.Join(errNotYet, err))
			}
		}
		return nil
	})
}

func expectDenied(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q in it", err, want)
	}
}

// grant gives an account (NAMESPACE/NAME) rights: in a namespace, or in the whole cluster.
func (s *server) grant(t *testing.T, namespace, account string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	of, name, _ := strings.Cut(account, "/")
	meta, api := metav1.ObjectMeta{GenerateName: "granted-"}, s.admin.RbacV1()
	role, err := api.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{})
	must(t, err)
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name}
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: of, Name: name}}
	if namespace == "" {
		_, err = api.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: subjects}, metav1.CreateOptions{})
	} else {
		_, err = api.RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: subjects}, metav1.CreateOptions{})
	}
	must(t, err)
}

// allowed is a right to resources of a group.
func allowed(group string, verbs string, resources ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: strings.Fields(verbs)}
}

func (s *server) create(ctx context.Context, pod *corev1.Pod, dryRun bool) (*corev1.Pod, error) {
	var options metav1.CreateOptions
	if dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	return s.admin.CoreV1().Pods(pod.Namespace).Create(ctx, pod, options)
}

// namespace makes a namespace, with the service account that the controllers of a whole cluster would make.
func (s *server) namespace(t *testing.T, name string, labels, annotations map[string]string) {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels, Annotations: annotations}}
	if _, err := s.admin.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	s.account(t, name, "default")
}

func (s *server) account(t *testing.T, namespace, name string) {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := s.admin.CoreV1().ServiceAccounts(namespace).Create(t.Context(), account, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

// names returns the name of each item.
func names[T any](list []T, name func(T) string) []string {
	out := make([]string, 0, len(list))
	for _, item := range list {
		out = append(out, name(item))
	}
	return out
}

func gates(pod *corev1.Pod) []string {
	return names(pod.Spec.ReadinessGates, func(g corev1.PodReadinessGate) string { return string(g.ConditionType) })
}

func initContainers(pod *corev1.Pod) []string {
	return names(pod.Spec.InitContainers, func(c corev1.Container) string { return c.Name })
}

func hasGate(pod *corev1.Pod) bool { return slices.Contains(gates(pod), condition) }
