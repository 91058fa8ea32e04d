package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// brokenReleases are changes of the agent's pod after which it never becomes ready.
func brokenReleases() map[string]map[string]any {
	agent := func(change map[string]any) map[string]any {
		change["name"] = "agent"
		return map[string]any{"spec": map[string]any{"containers": []any{change}}}
	}
	return map[string]map[string]any{
		"a right is missing": {"spec": map[string]any{"serviceAccountName": "default", "serviceAccount": "default"}},
		"the API server is out of reach": agent(map[string]any{"env": []any{
			map[string]any{"name": "KUBERNETES_SERVICE_HOST", "value": "127.0.0.1"}, map[string]any{"name": "KUBERNETES_SERVICE_PORT", "value": "1"},
		}}),
		"it crashes at once": agent(map[string]any{"args": []string{"run", "--no-such-flag"}}),
	}
}

// The chart goes to a release that never becomes ready: with the agent of before, pods start with their rules, containers that crashed come back,
// pods end. Going back leaves that agent as it was. E2E_RELEASE is how long each release stays.
//
// Not parallel: there is one DaemonSet.
func TestReleaseThatNeverStarts(t *testing.T) {
	lasting := 20 * time.Second
	if text := os.Getenv("E2E_RELEASE"); text != "" {
		var err error
		lasting, err = time.ParseDuration(text)
		must(t, err)
	}
	for name, broken := range brokenReleases() {
		t.Run(name, func(t *testing.T) {
			s := newSpace(t, asked())
			caught, old := catchAll(t), s.agent(t)
			runs := s.start(t, newPod("runs", nil, appContainer()))
			s.start(t, newPod("ends", nil, appContainer()))
			back := s.releaseAgent(t, broken)
			w, over := s.wave(t, caught), time.After(lasting)
			must(t, syscall.Kill(s.containerPID(t, runs, "app"), syscall.SIGKILL))
			s.await(t, "runs", func(pod *corev1.Pod) error {
				if pod.Status.ContainerStatuses[0].RestartCount == 0 {
					return errors.New("its container has not come back")
				}
				return isRunning(pod)
			})
			for _, name := range []string{"ends", "runs"} {
				s.deleteWithin(t.Context(), t, name, 1)
				s.awaitEnd(t, name)
			}
			<-over
			w.end(t)
			caught.wantNone(t)
			s.wantNoRefusals(t)
			back()
			now := s.agent(t)
			if now.UID != old.UID || now.Status.ContainerStatuses[0].RestartCount != old.Status.ContainerStatuses[0].RestartCount {
				t.Errorf("the agent of before has not stayed as it was: %s has restarted %d times", now.Name, now.Status.ContainerStatuses[0].RestartCount)
			}
		})
	}
}

// releaseAgent changes the agent's pods, and returns when one of the new ones is there. back takes the change away, at the end of the test at the
// latest.
func (s *space) releaseAgent(t *testing.T, template map[string]any) (back func()) {
	t.Helper()
	sets := s.api.AppsV1().DaemonSets(agentName)
	before, err := sets.Get(t.Context(), agentName, metav1.GetOptions{})
	must(t, err)
	back = sync.OnceFunc(func() {
		now, err := sets.Get(context.WithoutCancel(t.Context()), agentName, metav1.GetOptions{})
		must(t, err)
		now.Spec.Template = before.Spec.Template
		_, err = sets.Update(context.WithoutCancel(t.Context()), now, metav1.UpdateOptions{})
		must(t, err)
		s.agent(t)
	})
	t.Cleanup(back)
	s.patchDaemonSet(t, template)
	eventually(t, "an agent of the new release", func(ctx context.Context) error {
		list, err := s.api.CoreV1().Pods(agentName).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + agentName})
		if err != nil {
			return err
		}
		for i := range list.Items {
			if statuses := list.Items[i].Status.ContainerStatuses; len(statuses) > 0 && !isAgentOf(before.Spec.Template, list.Items[i]) && !statuses[0].Ready &&
				(statuses[0].State.Running != nil || statuses[0].RestartCount > 0) {
				return nil
			}
		}
		return errors.New("there is none")
	})
	return back
}

func isAgentOf(template corev1.PodTemplateSpec, pod corev1.Pod) bool {
	want, got := template.Spec.Containers[0], pod.Spec.Containers[0]
	return template.Spec.ServiceAccountName == pod.Spec.ServiceAccountName && fmt.Sprint(want.Args) == fmt.Sprint(got.Args) && len(want.Env) == len(got.Env)
}

// awaitEnd waits until a pod is gone.
func (s *space) awaitEnd(t *testing.T, name string) {
	t.Helper()
	eventually(t, "the end of pod "+name, func(ctx context.Context) error {
		_, err := s.pods().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New("it is still there"))
	})
}

// wantNoRefusals wants that the agent refused no pod of the space, and that none waited for an agent.
func (s *space) wantNoRefusals(t *testing.T) {
	t.Helper()
	list, err := s.api.CoreV1().Events(s.name).List(t.Context(), metav1.ListOptions{FieldSelector: "type=Warning"})
	must(t, err)
	for _, e := range list.Items {
		if strings.Contains(e.Message, "refuses pod") || strings.Contains(e.Message, "waits for its redirection rules") || strings.Contains(e.Message, "istio-pod-network-cni") {
			t.Errorf("%s: %s: %s", e.InvolvedObject.Name, e.Reason, e.Message)
		}
	}
}

// Five updates while pods come and go: none is refused, and none passes the proxy by.
//
// Not parallel: there is one DaemonSet.
func TestUpdateUnderChurn(t *testing.T) {
	s := newSpace(t, asked())
	caught := catchAll(t)
	w := s.wave(t, caught)
	for range 5 {
		s.rollAgent(t)
	}
	w.end(t)
	caught.wantNone(t)
	s.wantNoRefusals(t)
}
