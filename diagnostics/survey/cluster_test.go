package survey

import (
	"net/http/httptest"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"istio-pod-network-controller/diagnostics/cluster"
	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podreport"
	"istio-pod-network-controller/test/standins/apistandin"
)

// newPod returns a pod that runs, with a proxy.
func newPod(namespace, name, node string, change ...func(*corev1.Pod)) corev1.Pod {
	started := metav1.NewTime(time.Now().Add(-time.Hour))
	pod := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{}, CreationTimestamp: started},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "app"}, {Name: "istio-proxy"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &started},
	}
	for _, c := range change {
		c(&pod)
	}
	return pod
}

func asks(pod *corev1.Pod) { pod.Annotations[intent.KeyInitialize] = "true" }

func phase(p corev1.PodPhase) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Status.Phase = p }
}

// reports gives a pod the agent's report.
func reports(status podreport.Status, reason string, ok corev1.ConditionStatus) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		if status != "" {
			pod.Annotations[podreport.KeyStatus] = string(status)
			pod.Annotations[podreport.KeyDetails] = `{"hook":"nri","backend":"nftables","time":"2026-01-02T03:04:05Z","message":"m"}`
		}
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: podreport.Condition, Status: ok, Reason: reason, Message: "because"})
	}
}

func newAgent(node string, change ...func(*corev1.Pod)) corev1.Pod {
	pod := newPod("mesh", "agent-"+node, node, change...)
	pod.Labels = map[string]string{"app.kubernetes.io/name": "istio-pod-network-controller"}
	pod.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: "agent"}}
	pod.Spec.HostNetwork = true
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
	return pod
}

func says(s agentstatus.Status) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Annotations[agentstatus.Annotation] = s.String() }
}

func fine() agentstatus.Status {
	return agentstatus.Status{
		Version: "1", Backend: "nftables", Ready: true, Time: time.Now(),
		Hook: []agentstatus.Hook{{Name: "watch", Up: true}, {Name: "nri", Up: true}},
	}
}

func newNode(name string) corev1.Node {
	return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
	}}
}

func newNamespace(name, initialize string) corev1.Namespace {
	ns := corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if initialize != "" {
		ns.Annotations = map[string]string{intent.KeyInitialize: initialize}
	}
	return ns
}

func ask1(t *testing.T, s *apistandin.Server, o Options) (Report, error) {
	t.Helper()
	api := httptest.NewServer(s)
	t.Cleanup(api.Close)
	c, err := cluster.NewClient(&rest.Config{Host: api.URL})
	if err != nil {
		t.Fatal(err)
	}
	o.Version = "1"
	return Ask(t.Context(), c, o)
}
