package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
)

// Tests whose names begin with TestStartupTaint want an agent that is installed with hooks.startupTaint.enabled=true and asked through NRI.
// None is parallel: they change the only node.

const keyStartupTaint = "pod-network-controller.istio.io/not-ready"

// strangers are taints of somebody else that keep no pod away.
func strangers() []corev1.Taint {
	return []corev1.Taint{
		{Key: "e2e.example.com/first", Value: "a", Effect: corev1.TaintEffectPreferNoSchedule},
		{Key: keyStartupTaint + "-yet", Effect: corev1.TaintEffectPreferNoSchedule},
	}
}

func isStranger(taint corev1.Taint) bool {
	return slices.ContainsFunc(strangers(), func(s corev1.Taint) bool { return taint.MatchTaint(&s) })
}

//e2e:rounds nri
func TestStartupTaintGoesAndOthersStay(t *testing.T) {
	c := open(t)
	c.agent(t)
	between := strangers()
	c.taint(t, between[0],
		corev1.Taint{Key: keyStartupTaint, Effect: corev1.TaintEffectNoSchedule}, between[1],
		corev1.Taint{Key: keyStartupTaint, Value: "true", Effect: corev1.TaintEffectPreferNoSchedule})
	c.awaitUntainted(t)
	taints, err := c.taints(t.Context())
	must(t, err)
	if left := slices.DeleteFunc(taints, func(taint corev1.Taint) bool { return !isStranger(taint) }); !slices.Equal(left, between) {
		t.Errorf("of the other taints are left %v, want %v", left, between)
	}
}

// A node that registers with the taint, before its agent is there: pods that ask wait, and are redirected from their first
// packet on.
//
//e2e:rounds nri
func TestStartupTaintKeepsPodsAwayUntilTheAgentIsThere(t *testing.T) {
	s := newSpace(t, nil)
	s.awaitPolicy(t)
	comeBack := s.sendAgentAway(t)
	s.taint(t, corev1.Taint{Key: keyStartupTaint, Effect: corev1.TaintEffectNoSchedule})
	s.awaitScheduler(t)
	caught := catchAll(t)
	s.create(t, dialer("waits", asked(), 0, caught.port))
	s.await(t, "waits", isUnschedulable)
	comeBack()
	s.awaitUntainted(t)
	s.await(t, "waits", hasDialled)
	if by := readDetails(t, s.await(t, "waits", hasStatus(statusInitialized))).Hook; by != "nri" {
		t.Errorf("programmed by %s", by)
	}
	caught.wantNone(t)
}

// awaitScheduler waits until the scheduler, which watches the node, knows that no pod may come to it.
func (s *space) awaitScheduler(t *testing.T) {
	t.Helper()
	for n := 0; ; n++ {
		name := fmt.Sprint("first-", n)
		s.create(t, newPod(name, nil, appContainer()))
		pod := s.await(t, name, func(pod *corev1.Pod) error {
			if pod.Spec.NodeName != "" {
				return nil
			}
			return isUnschedulable(pod)
		})
		s.deleteWithin(t.Context(), t, name, 0)
		if pod.Spec.NodeName == "" {
			return
		}
	}
}

func isUnschedulable(pod *corev1.Pod) error {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable {
			return nil
		}
	}
	return fmt.Errorf("it is not refused by the scheduler: %+v", pod.Status.Conditions)
}

// taint puts taints on the node. Those that are left of them go with the test.
func (c *cluster) taint(t *testing.T, taints ...corev1.Taint) {
	t.Helper()
	t.Cleanup(func() {
		must(t, c.changeTaints(context.WithoutCancel(t.Context()), func(all []corev1.Taint) []corev1.Taint {
			return slices.DeleteFunc(all, func(taint corev1.Taint) bool { return taint.Key == keyStartupTaint || isStranger(taint) })
		}))
	})
	must(t, c.changeTaints(t.Context(), func(all []corev1.Taint) []corev1.Taint { return append(all, taints...) }))
}

func (c *cluster) changeTaints(ctx context.Context, change func([]corev1.Taint) []corev1.Taint) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		node, err := c.api.CoreV1().Nodes().Get(ctx, c.node.NodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		node.Spec.Taints = change(node.Spec.Taints)
		_, err = c.api.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{})
		return err
	})
}

func (c *cluster) taints(ctx context.Context) ([]corev1.Taint, error) {
	node, err := c.api.CoreV1().Nodes().Get(ctx, c.node.NodeName, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return node.Spec.Taints, nil
}

func (c *cluster) awaitUntainted(t *testing.T) {
	t.Helper()
	eventually(t, "the node without the startup taint", func(ctx context.Context) error {
		taints, err := c.taints(ctx)
		if err == nil && slices.ContainsFunc(taints, func(taint corev1.Taint) bool { return taint.Key == keyStartupTaint }) {
			err = fmt.Errorf("it has %v", taints)
		}
		return err
	})
}
