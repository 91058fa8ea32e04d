package e2e

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

//e2e:rounds nftables
func TestHasDialledReadsTheCounts(t *testing.T) {
	started := metav1.NewTime(time.Unix(1, 0))
	tests := map[string]struct {
		in   corev1.ContainerState
		want bool
	}{
		"it runs":                       {in: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: started}}},
		"it never ran":                  {in: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: `{"ok":20}`}}},
		"it was ended before its start": {in: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{StartedAt: metav1.NewTime(time.Unix(0, 0)), Message: `{"ok":20}`}}},
		"it dialled, and met both": {
			in:   corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{StartedAt: started, Message: `{"ok":12,"failed":8,"done":true}`}},
			want: true,
		},
		"it was ended early":     {in: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{StartedAt: started, Message: `{"ok":3}`}}},
		"it did not dial":        {in: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{StartedAt: started}}},
		"it says something else": {in: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{StartedAt: started, Message: "no route"}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: tt.in}}}}
			if err := hasDialled(pod); (err == nil) != tt.want {
				t.Errorf("got %v, want success %t", err, tt.want)
			}
		})
	}
}

//e2e:rounds nftables
func TestHasEndedCountsContainersThatNeverStarted(t *testing.T) {
	tests := map[string]struct {
		in   corev1.ContainerStateTerminated
		want bool
	}{
		"the runtime could not start it":     {in: corev1.ContainerStateTerminated{Reason: "StartError"}, want: true},
		"containerd ended before its start":  {in: corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 137, StartedAt: metav1.NewTime(time.Unix(0, 0))}, want: true},
		"it was started, and killed at once": {in: corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 137, StartedAt: metav1.NewTime(time.Unix(1, 0))}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &tt.in}}}}}
			if err := hasEnded(pod); (err == nil) != tt.want {
				t.Errorf("got %v, want success %t", err, tt.want)
			}
		})
	}
}
