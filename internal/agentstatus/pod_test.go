package agentstatus

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func newPod(name string, age time.Duration, ready corev1.ConditionStatus, change ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{"app.kubernetes.io/name": "istio-pod-network-controller"},
			OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet"}}, CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0).Add(-age)),
		},
		Spec:   corev1.PodSpec{NodeName: "n1", HostNetwork: true},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
	}
	for _, c := range change {
		c(pod)
	}
	return pod
}

// Whatever a pod's owner can do without more rights must not make an agent of it.
func TestWhatIsAnAgent(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*corev1.Pod)
		want   bool
	}{
		"an agent":                       {func(*corev1.Pod) {}, true},
		"a pod with a network of itself": {func(p *corev1.Pod) { p.Spec.HostNetwork = false }, false},
		"a pod of no DaemonSet":          {func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "Job" }, false},
		"a pod without the label":        {func(p *corev1.Pod) { p.Labels = nil }, false},
		"a pod without a node":           {func(p *corev1.Pod) { p.Spec.NodeName = "" }, false},
	} {
		if got := IsAgent(newPod("a", 0, corev1.ConditionTrue, tc.change)); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestTheAgentInChargeIsFirst(t *testing.T) {
	ends := func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) }
	pods := []*corev1.Pod{
		newPod("ends", 0, corev1.ConditionTrue, ends), newPod("starts", 0, corev1.ConditionFalse), newPod("old", time.Hour, corev1.ConditionTrue),
		newPod("new", time.Minute, corev1.ConditionTrue),
	}
	slices.SortFunc(pods, Compare)
	for i, want := range []string{"new", "old", "starts", "ends"} {
		if pods[i].Name != want {
			t.Errorf("%d: %s, want %s", i, pods[i].Name, want)
		}
	}
}
