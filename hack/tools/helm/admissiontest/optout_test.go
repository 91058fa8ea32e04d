package admissiontest

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

const optOut = `{"metadata": {"annotations": {"` + initialize + `": "false"}}}`

// optsOut lets people without and with the verb have pods opt out, in every way that writes annotations of a pod.
func (s *server) optsOut(t *testing.T) {
	t.Helper()
	tenant, trusted := s.people(t)
	before := s.podIn(t, s.admin, "asking", "default", "false")
	asks := s.podIn(t, s.admin, "asking", "default", "true")
	s.install(t, "{excludeNamespaces: [kube-system], admission: {allowOptOut: false}}")
	eventually(t, "the API server follows the policy", func(ctx context.Context) error {
		if _, err := createAs(ctx, tenant, "asking", "default", "false"); !apierrors.IsForbidden(err) {
			return fmt.Errorf("not denied: %w", err)
		}
		return nil
	})
	for name, c := range map[string]struct {
		who                       kubernetes.Interface
		namespace, account, value string
		denied                    bool
	}{
		"a tenant":                                  {tenant, "asking", "default", "false", true},
		"a tenant, a pod that asks":                 {tenant, "asking", "default", "true", false},
		"a tenant, a pod that says nothing":         {tenant, "asking", "default", "", false},
		"a tenant, a value that means nothing":      {tenant, "asking", "default", "False", false},
		"a tenant, a pod of an account that may":    {tenant, "asking", "batch", "false", false},
		"a tenant, where the namespace says naught": {tenant, "silent", "default", "false", false},
		"one who may":                               {trusted, "asking", "default", "false", false},
		"an administrator":                          {s.admin, "asking", "default", "false", false},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := createAs(t.Context(), c.who, c.namespace, c.account, c.value)
			if c.denied && !apierrors.IsForbidden(err) || !c.denied && err != nil {
				t.Errorf("error %v, want it denied: %t", err, c.denied)
			}
		})
	}
	t.Run("a pod that runs", func(t *testing.T) { s.optsOutLater(t, tenant, trusted, asks, before) })
}

// optsOutLater changes pods that are there: asks has not opted out, and before had before there was a policy.
func (s *server) optsOutLater(t *testing.T, tenant, trusted kubernetes.Interface, asks, before string) {
	t.Helper()
	change := func(who kubernetes.Interface, pod, text string, parts ...string) error {
		_, err := who.CoreV1().Pods("asking").Patch(t.Context(), pod, types.MergePatchType, []byte(text),
			metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, parts...)
		return err
	}
	binding := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: asks, Annotations: map[string]string{initialize: "false"}},
		Target:     corev1.ObjectReference{Kind: "Node", Name: "n1"},
	}
	for name, err := range map[string]error{
		"the pod":    change(tenant, asks, optOut),
		"its status": change(tenant, asks, optOut, "status"),
		"its binding": tenant.CoreV1().Pods("asking").Bind(t.Context(), binding,
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}),
		"its binding, the old way": tenant.CoreV1().RESTClient().Post().Namespace("asking").Resource("bindings").Body(binding).Do(t.Context()).Error(),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: error %v, want it denied", name, err)
		}
	}
	for name, err := range map[string]error{
		"one who may":    change(trusted, asks, optOut),
		"another change": change(tenant, asks, `{"metadata": {"labels": {"a": "b"}}}`),
		"another change of one that had opted out": change(tenant, before, `{"metadata": {"labels": {"a": "b"}}}`),
		"its status":   change(tenant, before, `{"status": {"message": "a"}}`, "status"),
		"asking again": change(tenant, before, `{"metadata": {"annotations": {"`+initialize+`": "true"}}}`),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// people are a tenant, who may do everything with pods of the namespaces, and one who may have them opt out, too. So may the
// account batch.
func (s *server) people(t *testing.T) (tenant, trusted kubernetes.Interface) {
	t.Helper()
	pods := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"*"}, Verbs: []string{"*"}}
	opt := rbacv1.PolicyRule{APIGroups: []string{"pod-network-controller.istio.io"}, Resources: []string{"redirection"}, Verbs: []string{"opt-out"}}
	for _, namespace := range []string{"asking", "silent"} {
		for account, rules := range map[string][]rbacv1.PolicyRule{"tenant": {pods}, "trusted": {pods, opt}, "batch": {opt}} {
			meta := metav1.ObjectMeta{Name: account}
			_, errAccount := s.admin.CoreV1().ServiceAccounts(namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{})
			_, errRole := s.admin.RbacV1().Roles(namespace).Create(t.Context(), &rbacv1.Role{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{})
			_, errBinding := s.admin.RbacV1().RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{
				ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: account},
				Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "asking", Name: account}},
			}, metav1.CreateOptions{})
			if errAccount != nil || errRole != nil || errBinding != nil {
				t.Fatal(errAccount, errRole, errBinding)
			}
		}
	}
	return s.client(t, s.tokenOf(t, "asking", "tenant", "")), s.client(t, s.tokenOf(t, "asking", "trusted", ""))
}

// podIn creates a pod that stays, and returns its name.
func (s *server) podIn(t *testing.T, who kubernetes.Interface, namespace, account, value string) string {
	t.Helper()
	created, err := who.CoreV1().Pods(namespace).Create(t.Context(), podWithAnnotation(namespace, account, value), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return created.Name
}

func createAs(ctx context.Context, who kubernetes.Interface, namespace, account, value string) (*corev1.Pod, error) {
	return who.CoreV1().Pods(namespace).Create(ctx, podWithAnnotation(namespace, account, value), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
}

// podWithAnnotation is a pod of an account, with a value of the annotation; empty means none.
func podWithAnnotation(namespace, account, value string) *corev1.Pod {
	pod := shape{namespace: namespace, change: changes(container("istio-proxy"))}.pod()
	pod.Spec.ServiceAccountName = account
	if value != "" {
		annotate(initialize, value)(pod)
	}
	return pod
}
