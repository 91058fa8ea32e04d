package controllers

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/internal/intent"
)

// A new agent hears of running pods. Where their proxies listen, their rules stay.
func TestHold_agentMeetsRunningPod_listeningProxyIsNotWaitedFor(t *testing.T) {
	for _, listens := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			b, l := newBench(t), &fakeListeners{}
			holding(b)
			if b.Listeners = l; listens {
				l.ports = []uint16{15001, 15006}
			}
			b.pods.pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: intent.ProxyContainer, User: &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{UID: 1337}}}}
			if _, err := b.Ensure(t.Context(), NRI, announcedSandbox()); err != nil || b.holds() == listens {
				t.Errorf("the proxy listens: %t, the rules hold: %t, error %v", listens, b.holds(), err)
			}
		})
	}
}

// One that has not listened for as long as it is waited for was waited for by an agent before, and is not by each new one.
func TestHold_agentMeetsRunningPod_proxyThatNeverListenedIsNotWaitedForAgain(t *testing.T) {
	for age, want := range map[time.Duration]bool{29 * time.Second: true, 30 * time.Second: false} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			holding(b)
			b.Listeners = &fakeListeners{}
			running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(time.Now().Add(-age))}}
			b.pods.pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: intent.ProxyContainer, State: running}}
			if b.visit(t); b.holds() != want {
				t.Errorf("after %s: holds %t", age, b.holds())
			}
		})
	}
}
