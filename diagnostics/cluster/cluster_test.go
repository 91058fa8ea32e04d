package cluster

import (
	"context"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"istio-pod-network-controller/internal/agentstatus"
)

// podPages answers with one pod a page, named by what it continues. Each name is continued by its value.
func podPages(next map[string]string, fails func(o metav1.ListOptions) error) func(context.Context, metav1.ListOptions) (*corev1.PodList, error) {
	return func(_ context.Context, o metav1.ListOptions) (*corev1.PodList, error) {
		if err := fails(o); err != nil {
			return nil, err
		}
		list := &corev1.PodList{Items: []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "pod" + o.Continue}}}}
		list.Continue = next[o.Continue]
		return list, nil
	}
}

func never(metav1.ListOptions) error { return nil }

func names(pod *corev1.Pod) (string, bool) { return pod.Name, pod.Name != "pod2" }

func TestAll_pages_keepsWhatIsWanted(t *testing.T) {
	got, err := All(t.Context(), podPages(map[string]string{"": "2", "2": "3"}, never), metav1.ListOptions{}, names)
	if want := []string{"pod", "pod3"}; !slices.Equal(got, want) || err != nil {
		t.Errorf("%q, want %q: %v", got, want, err)
	}
}

func TestAll_samePageTwice_isAnError(t *testing.T) {
	if got, err := All(t.Context(), podPages(map[string]string{"": "2", "2": "2"}, never), metav1.ListOptions{}, names); err == nil {
		t.Errorf("%q", got)
	}
}

func TestAll_anotherKind_isAnError(t *testing.T) {
	if got, err := All(t.Context(), podPages(nil, never), metav1.ListOptions{}, func(n *corev1.Node) (string, bool) { return n.Name, true }); err == nil {
		t.Errorf("%q", got)
	}
}

func TestAll_expiredList_isReadOnceMore(t *testing.T) {
	expired := 0
	fails := func(o metav1.ListOptions) error {
		if o.Continue == "" || expired == 0 {
			return nil
		}
		expired--
		return apierrors.NewResourceExpired("too old")
	}
	for times, fine := range map[int]bool{1: true, 2: false} {
		expired = times
		got, err := All(t.Context(), podPages(map[string]string{"": "3"}, fails), metav1.ListOptions{}, names)
		if fine && (err != nil || !slices.Equal(got, []string{"pod", "pod3"})) || !fine && !apierrors.IsResourceExpired(err) {
			t.Errorf("expired %d times: %q, %v", times, got, err)
		}
	}
}

func TestAgents_severalOnANode_beginWithTheOneInCharge(t *testing.T) {
	agent := func(name, node string, ready corev1.ConditionStatus) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "mesh", Name: name, Labels: map[string]string{"app.kubernetes.io/name": "istio-pod-network-controller"},
				OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet"}}, Annotations: map[string]string{agentstatus.Annotation: "{"},
			},
			Spec: corev1.PodSpec{NodeName: node, HostNetwork: true},
			Status: corev1.PodStatus{
				Conditions:            []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}},
				InitContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull"}}}},
				ContainerStatuses:     []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}}}},
			},
		}
	}
	forged := agent("forged", "a", "True")
	forged.Spec.HostNetwork = false
	agents, err := Agents(t.Context(), fake.NewClientset(agent("x", "b", "True"), agent("starts", "a", "False"), agent("works", "a", "True"), forged), "", "")
	var got []string
	for _, a := range agents {
		got = append(got, a.Name)
	}
	if want := []string{"works", "starts", "x"}; !slices.Equal(got, want) || err != nil {
		t.Fatalf("%q, want %q: %v", got, want, err)
	}
	if a := agents[1]; a.Ready || a.Waiting != "ErrImagePull" || a.Fault == "" || a.Status != nil || a.Node != "a" {
		t.Errorf("%+v", a)
	}
}

func TestCrashesOf_containerStatuses_nameTheLastEnd(t *testing.T) {
	ended := func(restarts int32, code int32, reason, message string) corev1.ContainerStatus {
		return corev1.ContainerStatus{RestartCount: restarts, LastTerminationState: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, Message: message},
		}}
	}
	for name, c := range map[string]struct {
		in       []corev1.ContainerStatus
		ready    bool
		crashing bool
		want     string
	}{
		"none":                {in: []corev1.ContainerStatus{{}}, want: "crashed 0 times"},
		"once":                {in: []corev1.ContainerStatus{ended(1, 2, "Error", "")}, want: "crashed 1 times, the last time with exit code 2 (Error)"},
		"a few times":         {in: []corev1.ContainerStatus{ended(3, 1, "Error", "{}\nerror: unknown flag: --x\n")}, crashing: true, want: "crashed 3 times, the last time with exit code 1 (error: unknown flag: --x)"},
		"ready since":         {in: []corev1.ContainerStatus{ended(7, 1, "Error", "")}, ready: true, want: "crashed 7 times, the last time with exit code 1 (Error)"},
		"an end of no reason": {in: []corev1.ContainerStatus{{RestartCount: 4}}, crashing: true, want: "crashed 4 times"},
	} {
		pod := &corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: c.in}}
		if c.ready {
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}
		if a := agentOf(pod); a.Crashes.String() != c.want || a.Crashing() != c.crashing {
			t.Errorf("%s: %q, crashing %t", name, a.Crashes, a.Crashing())
		}
	}
}
