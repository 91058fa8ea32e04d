package charttest

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"istio-pod-network-controller/hack/tools/helm/render"
)

// testObjects are what `helm test` makes, decoded strictly, in the order in which it makes them.
func (r rendered) testObjects(t *testing.T) []runtime.Object {
	t.Helper()
	if strings.Contains(r.Manifest, "-test\n") {
		t.Error("an object of the test is installed with the release")
	}
	hooks := slices.Clone(r.Hooks)
	slices.SortStableFunc(hooks, func(a, b render.Hook) int { return a.Weight - b.Weight })
	var out []runtime.Object
	for _, h := range hooks {
		if h.When != "[test] [before-hook-creation hook-succeeded]" {
			t.Errorf("it is made and deleted at %s:\n%s", h.When, h.Manifest)
		}
		out = append(out, decode(t, h.Manifest))
	}
	return out
}

func TestTheTestsAccountMayListNodesAndMakePodsInOneNamespace(t *testing.T) {
	objects := rendering(t, "{}").testObjects(t)
	namespace, account := one[*corev1.Namespace](t, objects).Name, one[*corev1.ServiceAccount](t, objects)
	want := map[string][]right{account.Namespace + "/" + account.Name: {{"list", "", "nodes", "", ""}, {"create", "", "pods", "", namespace}, {"get", "", "pods", "", namespace}, {"delete", "", "pods", "", namespace}, {"list", "", "events", "", namespace}}}
	if diff := cmp.Diff(want, granted(t, objects), cmp.AllowUnexported(right{})); diff != "" || namespace == name {
		t.Errorf("pods are made in %s, rights (-want +got):\n%s", namespace, diff)
	}
	pod, ok := objects[len(objects)-1].(*corev1.Pod)
	if !ok || pod.Spec.ServiceAccountName != account.Name || pod.Namespace != account.Namespace {
		t.Errorf("last is %+v, want the pod of the account %s/%s", pod, account.Namespace, account.Name)
	}
}

// Its pod is none of the agent's, runs with the least rights, and what has its name before the test is deleted, also if it is not of a test.
func TestTheTestsPod(t *testing.T) {
	for _, values := range []string{"{}", "kubernetesDistribution: OpenShift", "{fullnameOverride: " + strings.Repeat("a", 63) + "}"} {
		made := rendering(t, values)
		objects := made.testObjects(t)
		pod := one[*corev1.Pod](t, objects)
		if labels.SelectorFromSet(made.daemonSet(t).Spec.Selector.MatchLabels).Matches(labels.Set(pod.Labels)) {
			t.Error("the DaemonSet selects the pod")
		}
		for _, o := range objects {
			if named, ok := o.(metav1.Object); !ok || !strings.Contains(named.GetName(), "-connectivity-test") || len(named.GetName()) > 63 {
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

func TestTheTestsArguments(t *testing.T) {
	made := rendering(t, "{redirection.select: injected, image: {tag: '7'}}")
	objects := made.testObjects(t)
	args := one[*corev1.Pod](t, objects).Spec.Containers[0].Args
	for _, want := range []string{"--select=injected", "--image=" + made.agent(t).Containers[0].Image, "--namespace=" + one[*corev1.Namespace](t, objects).Name} {
		if !slices.Contains(args, want) {
			t.Errorf("no %s in %q", want, args)
		}
	}
}

// OpenShift's default policy refuses the proxy's user.
func TestOnOpenShiftTheTestsPodsMayRunAsTheProxysUser(t *testing.T) {
	var bound []string
	for _, b := range all[*rbacv1.RoleBinding](rendering(t, "kubernetesDistribution: OpenShift").testObjects(t)) {
		if b.RoleRef.Kind == "ClusterRole" {
			bound = append(bound, b.RoleRef.Name+" "+b.Subjects[0].Name)
		}
	}
	if diff := cmp.Diff([]string{"system:openshift:scc:nonroot-v2 default"}, bound); diff != "" {
		t.Error(diff)
	}
}
