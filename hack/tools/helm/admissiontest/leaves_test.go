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

// keySidecar is the annotation that names a profile; the namespace "meshed" names one.
const keySidecar = "pod-network-controller.istio.io/sidecar"

// proxied is a pod with an application alone.
func proxied(namespace string, annotations map[string]string) *corev1.Pod {
	pod := shape{namespace: namespace}.pod()
	pod.Annotations = annotations
	return pod
}

// leavesProxies lets a tenant's pods choose: with the profile of the namespace they wait for their proxy, and they may not choose less.
func (s *server) leavesProxies(t *testing.T) {
	t.Helper()
	tenant := s.tenantOf(t, "meshed")
	s.install(t, "{excludeNamespaces: [kube-system], sidecars: {enabled: true}, admission: {allowOptOut: false}}")
	create := func(ctx context.Context, who kubernetes.Interface, pod *corev1.Pod, dry ...string) (*corev1.Pod, error) {
		return who.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: dry})
	}
	none := map[string]string{keySidecar: "none"}
	eventually(t, "the API server follows the policies", func(ctx context.Context) error {
		if _, err := create(ctx, tenant, proxied("meshed", none), metav1.DryRunAll); !apierrors.IsForbidden(err) {
			return fmt.Errorf("not denied: %w", err)
		}
		pod, err := create(ctx, tenant, proxied("meshed", nil), metav1.DryRunAll)
		if err == nil && !hasGate(pod) {
			err = fmt.Errorf("no gate: %+v", pod.Spec.ReadinessGates)
		}
		return err
	})
	for name, c := range map[string]struct {
		namespace    string
		annotations  map[string]string
		denied, gate bool
	}{
		"nothing":                     {namespace: "meshed", gate: true},
		"the namespace's own":         {namespace: "meshed", annotations: map[string]string{keySidecar: "edge"}, gate: true},
		"another profile":             {namespace: "meshed", annotations: map[string]string{keySidecar: "other"}, denied: true},
		"none":                        {namespace: "meshed", annotations: none, denied: true},
		"no redirection":              {namespace: "meshed", annotations: map[string]string{initialize: "false"}, denied: true},
		"a profile, in no mesh":       {namespace: "silent", annotations: map[string]string{keySidecar: "edge"}, gate: true},
		"none, in no mesh":            {namespace: "silent", annotations: none},
		"no redirection, in no mesh":  {namespace: "silent", annotations: map[string]string{initialize: "false", keySidecar: "edge"}},
		"none, where proxies are its": {namespace: "asking", annotations: none},
	} {
		t.Run(name, func(t *testing.T) {
			pod, err := create(t.Context(), tenant, proxied(c.namespace, c.annotations), metav1.DryRunAll)
			if c.denied && !apierrors.IsForbidden(err) || !c.denied && err != nil {
				t.Fatalf("error %v, want it denied: %t", err, c.denied)
			}
			if err == nil && hasGate(pod) != c.gate {
				t.Errorf("gates %+v, want ours: %t", pod.Spec.ReadinessGates, c.gate)
			}
		})
	}
	pod, err := create(t.Context(), tenant, proxied("meshed", nil))
	if err != nil {
		t.Fatal(err)
	}
	for patch, denied := range map[string]bool{
		`{"metadata":{"annotations":{"` + keySidecar + `":"none"}}}`: true, `{"metadata":{"annotations":{"` + initialize + `":"false"}}}`: true,
		`{"metadata":{"labels":{"a":"b"}}}`: false,
	} {
		_, err := tenant.CoreV1().Pods("meshed").Patch(t.Context(), pod.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		if denied != apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", patch, err)
		}
	}
}

// tenantOf is the tenant of the namespace "asking", who may do everything with pods of another one as well.
func (s *server) tenantOf(t *testing.T, namespace string) kubernetes.Interface {
	t.Helper()
	meta := metav1.ObjectMeta{Name: "tenant"}
	_, err := s.admin.RbacV1().RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "tenant"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "asking", Name: "tenant"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.admin.RbacV1().Roles(namespace).Create(t.Context(), &rbacv1.Role{
		ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"*"}, Verbs: []string{"*"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s.client(t, s.tokenOf(t, "asking", "tenant", ""))
}
