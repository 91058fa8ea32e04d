package admissiontest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/releaseutil"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

const (
	chartDir = "../../../../chart/istio-pod-network-controller"
	// release is the chart's release, its namespace and the name of all of its objects.
	release   = "istio-pod-network-controller"
	condition = "pod-network-controller.istio.io/initialized"
	waitName  = "istio-pod-network-wait"
	plugins   = "required-plugins.noderesource.dev"
)

// resources are the kinds that a test installs; the agent itself has no node to run on.
func resources() map[string]schema.GroupVersionResource {
	resource := func(group, name string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Group: group, Version: "v1", Resource: name}
	}
	const admission, rbac = "admissionregistration.k8s.io", "rbac.authorization.k8s.io"
	return map[string]schema.GroupVersionResource{
		"MutatingAdmissionPolicy":          resource(admission, "mutatingadmissionpolicies"),
		"MutatingAdmissionPolicyBinding":   resource(admission, "mutatingadmissionpolicybindings"),
		"ValidatingAdmissionPolicy":        resource(admission, "validatingadmissionpolicies"),
		"ValidatingAdmissionPolicyBinding": resource(admission, "validatingadmissionpolicybindings"),
		"ClusterRole":                      resource(rbac, "clusterroles"),
		"ClusterRoleBinding":               resource(rbac, "clusterrolebindings"),
		"ServiceAccount":                   resource("", "serviceaccounts"),
		"CustomResourceDefinition":         resource("apiextensions.k8s.io", "customresourcedefinitions"),
	}
}

// install applies what the chart renders, and deletes what an earlier call has applied. Like Helm it renders for the kinds that the
// API server has.
func (s *server) install(t *testing.T, values string) {
	t.Helper()
	client, err := dynamic.NewForConfig(s.config)
	if err != nil {
		t.Fatal(err)
	}
	rendered := map[string]bool{}
	for _, object := range render(t, values, s.kinds(t)) {
		gvr, ok := resources()[object.GetKind()]
		if !ok {
			continue
		}
		rendered[object.GetKind()+" "+object.GetName()] = true
		to := dynamic.ResourceInterface(client.Resource(gvr))
		if object.GetNamespace() != "" {
			to = client.Resource(gvr).Namespace(object.GetNamespace())
		}
		if _, err := to.Apply(t.Context(), object.GetName(), object, metav1.ApplyOptions{FieldManager: "helm", Force: true}); err != nil {
			t.Fatalf("install %s: %v", object.GetKind(), err)
		}
	}
	for kind, gvr := range resources() {
		for _, name := range []string{release, release + "-node", release + "-opt-out", release + "-tokens", release + "-sidecars", release + "-profiles"} {
			if rendered[kind+" "+name] || !strings.HasPrefix(gvr.Group, "admission") {
				continue
			}
			if err := client.Resource(gvr).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				t.Fatal(err)
			}
		}
	}
}

// kinds are those that the API server has, as group/version/kind.
func (s *server) kinds(t *testing.T) []string {
	t.Helper()
	_, lists, err := s.admin.Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, list := range lists {
		kinds = append(kinds, list.GroupVersion)
		for _, r := range list.APIResources {
			kinds = append(kinds, list.GroupVersion+"/"+r.Kind)
		}
	}
	return kinds
}

func render(t *testing.T, values string, kinds []string) []*unstructured.Unstructured {
	t.Helper()
	loaded, err := loader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := chartutil.ReadValues([]byte(values))
	if err != nil {
		t.Fatal(err)
	}
	client := action.NewInstall(&action.Configuration{Log: t.Logf})
	client.ClientOnly, client.DryRun, client.APIVersions = true, true, kinds
	client.ReleaseName, client.Namespace = release, release
	client.KubeVersion = &chartutil.KubeVersion{Version: "v1.36.0", Major: "1", Minor: "36"}
	rel, err := client.RunWithContext(t.Context(), loaded, parsed)
	if err != nil {
		t.Fatal(err)
	}
	var objects []*unstructured.Unstructured
	for _, doc := range releaseutil.SplitManifests(rel.Manifest) {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(doc), object); err != nil {
			t.Fatal(err)
		}
		objects = append(objects, object)
	}
	return objects
}

// policies installs the chart with values, and waits until the API server uses the new policies, which have no status that shows it.
// Each configuration is recognised by its waitTimeout.
func (s *server) policies(t *testing.T, admission, selection string, nonce int) {
	t.Helper()
	timeout := fmt.Sprintf("%dms", 60000+nonce)
	s.install(t, fmt.Sprintf("{select: %s, admission: {waitContainer: true, waitTimeout: %s%s}}", selection, timeout, admission))
	eventually(t, "the API server follows the policies", func(ctx context.Context) error {
		// A pod that every value of select selects.
		pod := shape{namespace: "default", change: changes(annotate(initialize, "true", "sidecar.istio.io/status", "{}"), container("istio-proxy"))}.pod()
		created, err := s.create(ctx, pod, true)
		if err != nil {
			return err
		}
		text, err := json.Marshal(created.Spec.InitContainers)
		if err == nil && !strings.Contains(string(text), "--timeout="+timeout) {
			err = fmt.Errorf("init containers %s", text)
		}
		return err
	})
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
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if _, err := s.admin.CoreV1().ServiceAccounts(name).Create(t.Context(), account, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
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
