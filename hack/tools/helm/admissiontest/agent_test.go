package admissiontest

import (
	"context"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

const report = `"metadata": {"annotations": {"pod-network-controller.istio.io/status": "initialized", "pod-network-controller.istio.io/details": "{}"}}`

// restrictsAgent lets the agent's account do what it must not, each alone, and what it must.
func (s *server) restrictsAgent(t *testing.T) {
	s.install(t, "{hooks.startupTaint.enabled: true}")
	// More than the chart gives, so that the policy and not RBAC has to deny.
	s.grant(t, "", release+"/"+release, allowed("", "patch", "pods", "nodes", "nodes/status"))
	s.podOn(t, release, "agent", "n1", release)
	s.podOn(t, "silent", "here", "n1", "default")
	s.podOn(t, "silent", "there", "n2", "default")
	agent := s.client(t, s.token(t, "agent"))
	untilDenied(t, func(ctx context.Context) error {
		_, err := patch(ctx, agent, "there", "status", `{"metadata": {"annotations": {"a": "b"}}}`, true)
		return err
	}, release, "denied")
	testDenials(t, agent)
	t.Run("its node", func(t *testing.T) { s.restrictsToNode(t, agent) })
	t.Run("what the agent is for", func(t *testing.T) {
		for _, status := range []string{"True", "False", "True"} {
			pod, err := patch(t.Context(), agent, "here", "status",
				`{`+report+`, "status": {"conditions": [{"type": "`+condition+`", "status": "`+status+`", "reason": "Test"}]}}`, false)
			must(t, err)
			if pod.Annotations["pod-network-controller.istio.io/status"] != "initialized" || len(pod.Status.Conditions) != 2 {
				t.Errorf("annotations %v, conditions %v", pod.Annotations, pod.Status.Conditions)
			}
		}
	})
	t.Run("what the agent says about itself", func(t *testing.T) { s.restrictsToOwnPod(t, agent) })
	t.Run("the specification and the owner", func(t *testing.T) { leavesSpecification(t, agent) })
	t.Run("what RBAC alone refuses", func(t *testing.T) { s.refusesByRBAC(t, agent) })
	t.Run("a token that is bound to no node", func(t *testing.T) {
		_, err := patch(t.Context(), s.client(t, s.token(t, "")), "here", "status", `{`+report+`}`, true)
		expectDenied(t, err, "the agent's token is not bound to a node")
	})
	t.Run("a startup taint of another key", func(t *testing.T) { s.knowsTheKey(t, agent) })
	t.Run("a token whose pod is gone", func(t *testing.T) { s.refusesTokensOfDeletedPods(t) })
	t.Run("others are free", func(t *testing.T) {
		if _, err := patch(t.Context(), s.admin, "there", "", `{"metadata": {"labels": {"a": "b"}}}`, true); err != nil {
			t.Error(err)
		}
	})
}

// restrictsToOwnPod has an agent write about itself, which it may on the pod that its token was made for.
func (s *server) restrictsToOwnPod(t *testing.T, agent kubernetes.Interface) {
	s.podOn(t, release, "agent-2", "n1", release)
	s.podOn(t, "silent", "agent", "n1", "default")
	const status = `{"metadata": {"annotations": {"pod-network-controller.istio.io/agent": "{}"}}}`
	pod, err := patch(t.Context(), agent, "agent", "status", status, false)
	if err != nil || pod.Annotations["pod-network-controller.istio.io/agent"] != "{}" {
		t.Errorf("its own pod: %v, %v", pod.Annotations, err)
	}
	const want = "and one about itself on its own pod"
	denies(t, agent, map[string]denial{
		"another agent's pod, on the same node":        {"agent-2", "status", status, want},
		"a pod of its name, in another namespace":      {"silent/agent", "status", status, want},
		"a pod that it reports on":                     {"here", "status", status, want},
		"another key on its own pod":                   {"agent", "status", `{"metadata": {"annotations": {"pod-network-controller.istio.io/agent2": "{}"}}}`, want},
		"not through the status":                       {"agent", "", status, "the agent may change a pod's status only"},
		"a label of its own pod":                       {"agent", "status", `{"metadata": {"labels": {"a": "b"}}}`, "the agent may change no label, finalizer or owner"},
		"its own readiness":                            {"agent", "status", `{"status": {"conditions": [{"type": "Ready", "status": "True"}]}}`, "the agent may write its own condition only"},
		"another's annotation taken away from its own": {"agent", "status", `{"metadata": {"annotations": {"kept": null}}}`, want},
	})
}

// denial is a change of a pod, or a part of it, and what the policy says to it.
type denial struct{ pod, part, patch, want string }

func denies(t *testing.T, agent kubernetes.Interface, changes map[string]denial) {
	t.Helper()
	for name, c := range changes {
		t.Run(name, func(t *testing.T) {
			_, err := patch(t.Context(), agent, c.pod, c.part, c.patch, true)
			expectDenied(t, err, c.want)
		})
	}
}

func testDenials(t *testing.T, agent kubernetes.Interface) {
	const annotations, meta = "the agent may write its report's two annotations only", "the agent may change no label, finalizer or owner"
	const conditions, status = "the agent may write its own condition only", "the agent may change nothing of a pod's status but its condition"
	denies(t, agent, map[string]denial{
		"a pod of another node":               {"there", "status", `{` + report + `}`, "the pod is not on the agent's node n1"},
		"the pod itself":                      {"here", "", `{` + report + `}`, "the agent may change a pod's status only"},
		"an annotation more":                  {"here", "status", `{"metadata": {"annotations": {"a": "b"}}}`, annotations},
		"another's annotation":                {"here", "status", `{"metadata": {"annotations": {"kept": "b"}}}`, annotations},
		"another's annotation taken away":     {"here", "status", `{"metadata": {"annotations": {"kept": null}}}`, annotations},
		"a label":                             {"here", "status", `{"metadata": {"labels": {"a": "b"}}}`, meta},
		"a label changed":                     {"here", "status", `{"metadata": {"labels": {"app": "b"}}}`, meta},
		"a label taken away":                  {"here", "status", `{"metadata": {"labels": {"app": null}}}`, meta},
		"a finalizer":                         {"here", "status", `{"metadata": {"finalizers": ["a/b"]}}`, meta},
		"readiness":                           {"here", "status", `{"status": {"conditions": [{"type": "Ready", "status": "True"}]}}`, conditions},
		"a condition taken away":              {"here", "status", `{"status": {"conditions": [{"type": "Ready", "$patch": "delete"}]}}`, conditions},
		"a condition more":                    {"here", "status", `{"status": {"conditions": [{"type": "PodScheduled", "status": "False"}]}}`, conditions},
		"a condition of another name":         {"here", "status", `{"status": {"conditions": [{"type": "` + condition + `d", "status": "True"}]}}`, conditions},
		"the phase":                           {"here", "status", `{"status": {"phase": "Succeeded"}}`, status},
		"the address":                         {"here", "status", `{"status": {"podIP": "10.0.0.9", "podIPs": [{"ip": "10.0.0.9"}, {"$patch": "replace"}]}}`, status},
		"the host's address":                  {"here", "status", `{"status": {"hostIP": "10.0.0.9", "hostIPs": [{"ip": "10.0.0.9"}]}}`, status},
		"containers":                          {"here", "status", `{"status": {"containerStatuses": [{"name": "app", "ready": true}]}}`, status},
		"a reason taken away":                 {"here", "status", `{"status": {"reason": null}}`, status},
		"the report, and something beside it": {"here", "status", `{` + report + `, "status": {"message": "x"}}`, status},
	})
}

// leavesSpecification tries to change a pod's specification, by an update of the pod and of its status.
func leavesSpecification(t *testing.T, agent kubernetes.Interface) {
	const spec = `{"spec": {"activeDeadlineSeconds": 1, "containers": [{"name": "app", "image": "example.com/other"}]}}`
	_, err := patch(t.Context(), agent, "here", "", spec, true)
	expectDenied(t, err, "the agent may change a pod's status only")
	// The API server itself leaves both out of what changes a status.
	const owner = `{"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "x"}]}}`
	for _, text := range []string{spec, owner} {
		pod, err := patch(t.Context(), agent, "here", "status", text, false)
		if err != nil || pod.Spec.ActiveDeadlineSeconds != nil || pod.Spec.Containers[0].Image != "example.com/app" || len(pod.OwnerReferences) != 0 {
			t.Errorf("specification %+v, owners %v, error %v", pod.Spec, pod.OwnerReferences, err)
		}
	}
}

func (s *server) refusesTokensOfDeletedPods(t *testing.T) {
	s.podOn(t, release, "gone", "n1", release)
	stolen, now := s.client(t, s.token(t, "gone")), int64(0)
	must(t, s.admin.CoreV1().Pods(release).Delete(t.Context(), "gone", metav1.DeleteOptions{GracePeriodSeconds: &now}))
	untilDenied(t, func(ctx context.Context) error {
		_, err := stolen.CoreV1().Pods("silent").Get(ctx, "here", metav1.GetOptions{})
		return err
	}, "Unauthorized")
}

// refusesByRBAC tries what no role of the chart allows, with the token of a pod of the agent's.
func (s *server) refusesByRBAC(t *testing.T, agent kubernetes.Interface) {
	pods := agent.CoreV1().Pods("silent")
	dryRun := []string{metav1.DryRunAll}
	_, secrets := agent.CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{})
	_, created := pods.Create(t.Context(), shape{namespace: "silent"}.pod(), metav1.CreateOptions{DryRun: dryRun})
	_, token := agent.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	_, namespace := agent.CoreV1().Namespaces().Patch(t.Context(), "silent", types.MergePatchType, []byte(`{"metadata": {"annotations": {"a": "b"}}}`), metav1.PatchOptions{DryRun: dryRun})
	here := metav1.ObjectMeta{Name: "here"}
	for name, err := range map[string]error{
		"a pod more": created, "secrets": secrets, "a token of another account": token, "a namespace's annotation": namespace,
		"a pod less":    pods.Delete(t.Context(), "here", metav1.DeleteOptions{DryRun: dryRun}),
		"a pod evicted": pods.EvictV1(t.Context(), &policyv1.Eviction{ObjectMeta: here}),
		"a pod bound to a node": pods.Bind(t.Context(), &corev1.Binding{ObjectMeta: here, Target: corev1.ObjectReference{Kind: "Node", Name: "n2"}},
			metav1.CreateOptions{DryRun: dryRun}),
		"its own policy": agent.AdmissionregistrationV1().ValidatingAdmissionPolicies().Delete(t.Context(), release, metav1.DeleteOptions{DryRun: dryRun}),
	} {
		t.Run(name, func(t *testing.T) { wantForbidden(t, err, true) })
	}
}

// podOn is a pod that a kubelet has reported on.
func (s *server) podOn(t *testing.T, namespace, name, node, account string) {
	t.Helper()
	pod := shape{namespace: namespace, change: changes(onNode(node), annotate("kept", "a"), label("app", "a"))}.pod()
	pod.GenerateName, pod.Name, pod.Spec.ServiceAccountName = "", name, account
	created, err := s.create(t.Context(), pod, false)
	must(t, err)
	created.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, Reason: "Test", PodIP: "10.0.0.2", PodIPs: []corev1.PodIP{{IP: "10.0.0.2"}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}},
	}
	if _, err := s.admin.CoreV1().Pods(namespace).UpdateStatus(t.Context(), created, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// token is one of the agent's account, as its pod gets it from the kubelet; without a pod it is bound to nothing.
func (s *server) token(t *testing.T, pod string) string {
	t.Helper()
	return s.tokenOf(t, release, release, pod)
}

func (s *server) tokenOf(t *testing.T, namespace, account, pod string) string {
	t.Helper()
	request := &authenticationv1.TokenRequest{}
	if pod != "" {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod}
	}
	answer, err := s.admin.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), account, request, metav1.CreateOptions{})
	must(t, err)
	return answer.Status.Token
}

// patch changes a pod: an agent's, or one of the namespace silent. Another namespace stands before the name.
func patch(ctx context.Context, client kubernetes.Interface, pod, part, text string, dryRun bool) (*corev1.Pod, error) {
	options, parts, namespace := metav1.PatchOptions{}, []string{}, "silent"
	if strings.HasPrefix(pod, "agent") {
		namespace = release
	}
	if in, name, ok := strings.Cut(pod, "/"); ok {
		namespace, pod = in, name
	}
	if dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	if part != "" {
		parts = append(parts, part)
	}
	return client.CoreV1().Pods(namespace).Patch(ctx, pod, types.StrategicMergePatchType, []byte(text), options, parts...)
}
