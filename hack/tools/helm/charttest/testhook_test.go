package charttest

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/release"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// testObjects are what `helm test` makes, decoded strictly, in the order in which it makes them.
func testObjects(t *testing.T, values string) []runtime.Object {
	t.Helper()
	rel, err := install(t, values)
	if err != nil {
		t.Fatalf("render: %v", err)
	}
	if strings.Contains(rel.Manifest, "-test\n") {
		t.Error("an object of the test is installed with the release")
	}
	hooks := slices.Clone(rel.Hooks)
	slices.SortStableFunc(hooks, func(a, b *release.Hook) int { return a.Weight - b.Weight })
	var out []runtime.Object
	for _, h := range hooks {
		if !slices.Equal(h.Events, []release.HookEvent{release.HookTest}) {
			t.Errorf("%s %s runs at %v", h.Kind, h.Name, h.Events)
		}
		if !slices.Equal(h.DeletePolicies, []release.HookDeletePolicy{release.HookBeforeHookCreation, release.HookSucceeded}) {
			t.Errorf("%s %s is deleted at %v", h.Kind, h.Name, h.DeletePolicies)
		}
		out = append(out, decode(t, h.Manifest))
	}
	return out
}

func one[T runtime.Object](t *testing.T, objects []runtime.Object) (found T) {
	t.Helper()
	n := 0
	for _, o := range objects {
		if typed, ok := o.(T); ok {
			found, n = typed, n+1
		}
	}
	if n != 1 {
		t.Fatalf("%d objects of type %T", n, found)
	}
	return found
}

func TestTheTestsAccountMayListNodesAndMakePodsInOneNamespace(t *testing.T) {
	objects := testObjects(t, "{}")
	namespace := one[*corev1.Namespace](t, objects)
	role, cluster := one[*rbacv1.Role](t, objects), one[*rbacv1.ClusterRole](t, objects)
	if role.Namespace != namespace.Name || namespace.Name == name {
		t.Errorf("the role is in %s, the test's namespace is %s", role.Namespace, namespace.Name)
	}
	want := []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"create", "get", "delete"}},
		{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"list"}},
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"list"}},
	}
	if diff := cmp.Diff(want, append(role.Rules, cluster.Rules...)); diff != "" {
		t.Errorf("rights (-want +got):\n%s", diff)
	}
	account := one[*corev1.ServiceAccount](t, objects)
	subject := rbacv1.Subject{Kind: "ServiceAccount", Name: account.Name, Namespace: account.Namespace}
	for _, subjects := range [][]rbacv1.Subject{one[*rbacv1.RoleBinding](t, objects).Subjects, one[*rbacv1.ClusterRoleBinding](t, objects).Subjects} {
		if diff := cmp.Diff([]rbacv1.Subject{subject}, subjects); diff != "" {
			t.Error(diff)
		}
	}
}

// The DaemonSet would take a pod with its labels for one of its own.
func TestTheTestsPodIsRestrictedAndNoAgent(t *testing.T) {
	for _, values := range []string{"{}", "kubernetesDistribution: OpenShift", "{fullnameOverride: " + strings.Repeat("a", 63) + "}"} {
		objects := testObjects(t, values)
		pod, ok := objects[len(objects)-1].(*corev1.Pod)
		if !ok {
			t.Fatalf("last is a %T", objects[len(objects)-1])
		}
		selector, err := metav1.LabelSelectorAsSelector(daemonSet(t, values).Spec.Selector)
		if err != nil || selector.Matches(labels.Set(pod.Labels)) {
			t.Errorf("the DaemonSet selects the pod: %v", err)
		}
		if len(pod.Name) > 63 {
			t.Errorf("%s has %d letters", pod.Name, len(pod.Name))
		}
		for _, o := range objects {
			// What has the name before the test is deleted, also if it is not of a test.
			if named, ok := o.(metav1.Object); ok && !strings.Contains(named.GetName(), "-connectivity-test") {
				t.Errorf("a %T is named %s", o, named.GetName())
			}
		}
		c := pod.Spec.Containers[0].SecurityContext
		if !*pod.Spec.SecurityContext.RunAsNonRoot || pod.Spec.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault ||
			*c.AllowPrivilegeEscalation || !slices.Equal(c.Capabilities.Drop, []corev1.Capability{"ALL"}) {
			t.Errorf("not restricted: %+v %+v", pod.Spec.SecurityContext, c)
		}
	}
}

func TestTheTestsArgumentsAreFlagsOfTheCommand(t *testing.T) {
	objects := testObjects(t, "{select: injected, image: {tag: '7'}}")
	pod := one[*corev1.Pod](t, objects)
	args := pod.Spec.Containers[0].Args
	help, err := exec.CommandContext(t.Context(), *binary, args[0], args[1], "--help").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, help)
	}
	for _, arg := range args[2:] {
		flag, _, _ := strings.Cut(arg, "=")
		if !strings.Contains(string(help), flag+" ") {
			t.Errorf("the command has no flag %s", flag)
		}
	}
	for _, want := range []string{"--select=injected", "--image=" + daemonSet(t, "{image: {tag: '7'}}").Spec.Template.Spec.Containers[0].Image, "--namespace=" + one[*corev1.Namespace](t, objects).Name} {
		if !slices.Contains(args, want) {
			t.Errorf("no %s in %q", want, args)
		}
	}
}

// OpenShift's default policy refuses the proxy's user.
func TestOnOpenShiftTheTestsPodsMayRunAsTheProxysUser(t *testing.T) {
	var bound []string
	for _, o := range testObjects(t, "kubernetesDistribution: OpenShift") {
		if b, ok := o.(*rbacv1.RoleBinding); ok && b.RoleRef.Kind == "ClusterRole" {
			bound = append(bound, b.RoleRef.Name+" "+b.Subjects[0].Name)
		}
	}
	if diff := cmp.Diff([]string{"system:openshift:scc:nonroot-v2 default"}, bound); diff != "" {
		t.Error(diff)
	}
}
