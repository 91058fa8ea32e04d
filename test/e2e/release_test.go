package e2e

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// brokenReleases are charts whose agent never becomes ready: what is replaced in the template of the DaemonSet, and by what. They differ in the
// agent, which is the same for all hooks: for the CNI plugin one is enough.
func brokenReleases() map[string][2]string {
	const (
		account = `serviceAccountName: {{ include "agent.account" . }}`
		env     = "          env:\n"
		args    = `{{- include "agent.args" . | nindent 12 }}`
	)
	all := map[string][2]string{
		"a right is missing": {account, "serviceAccountName: default"},
		"the API server is out of reach": {env, env + `            - {name: KUBERNETES_SERVICE_HOST, value: 127.0.0.1}
            - {name: KUBERNETES_SERVICE_PORT, value: "1"}
`},
		"it crashes at once": {args, args + "\n            - --no-such-flag"},
	}
	if hook() == "cni" {
		maps.DeleteFunc(all, func(name string, _ [2]string) bool { return name != "it crashes at once" })
	}
	return all
}

// Helm upgrades to a release that never becomes ready. With the agent of before, pods start with their rules, containers that crashed come back,
// pods end. The rollback leaves that agent as it was, and of the release nothing on the node. E2E_RELEASE is how long each release stays.
//
// That agent must not crash meanwhile: Kubernetes would replace it by the one of the release (see docs/upgrade.md).
//
// Not parallel: there is one DaemonSet.
//
//e2e:rounds nri cni
func TestReleaseThatNeverStarts(t *testing.T) {
	lasting := duration(t, "E2E_RELEASE", 20*time.Second)
	for name, change := range brokenReleases() {
		t.Run(name, func(t *testing.T) {
			s := newQuietSpace(t, asked())
			caught, old := catchAll(t), s.agent(t)
			before, err := s.traces(t.Context())
			must(t, err)
			noted := before.routes()
			rollback := s.upgradeTo(t, change, old)
			w, over := s.wave(t, caught), time.After(lasting)
			s.wantLife(t, caught, "first")
			<-over
			s.wantLife(t, caught, "second")
			w.end(t)
			s.wantNoRefusals(t)
			caught.wantNone(t)
			rollback()
			if now := s.agent(t); now.UID != old.UID || restarts(now) != restarts(old) {
				t.Errorf("the agent is %s, restarted %d times; want %s, %d times", now.Name, restarts(now), old.Name, restarts(old))
			}
			s.wantTraces(t, "after the rollback", before.of(kindFiles, kindMounts, kindRules), noted...)
		})
	}
}

// upgradeTo upgrades to the chart with a change of its DaemonSet, and returns when the new agent runs, or has crashed. rollback takes the upgrade
// back, at the end of the test at the latest.
func (s *space) upgradeTo(t *testing.T, change [2]string, old *corev1.Pod) (rollback func()) {
	t.Helper()
	chart, r := t.TempDir(), release{helm: os.Getenv("HELM")}
	must(t, os.CopyFS(chart, os.DirFS("../../chart/"+agentName)))
	file := filepath.Join(chart, "templates/daemonset.yaml")
	text, err := os.ReadFile(file)
	must(t, err)
	if n := strings.Count(string(text), change[0]); n != 1 {
		t.Fatalf("the chart's DaemonSet has %q %d times, want 1", change[0], n)
	}
	must(t, os.WriteFile(file, []byte(strings.Replace(string(text), change[0], change[1], 1)), 0o600))
	r.run(t, "upgrade", chart, "--reset-then-reuse-values")
	rollback = sync.OnceFunc(func() { r.do(t, "rollback") })
	t.Cleanup(rollback)
	eventually(t, "an agent of the new release", func(ctx context.Context) error {
		list, err := s.api.CoreV1().Pods(agentName).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + agentName})
		if err != nil {
			return err
		}
		for i := range list.Items {
			if pod := &list.Items[i]; pod.UID != old.UID && (isRunning(pod) == nil || restarts(pod) > 0) {
				return nil
			}
		}
		return errors.New("there is none")
	})
	return rollback
}

// wantLife wants pods to start with their rules, a container to come back after a crash, and pods to end.
func (s *space) wantLife(t *testing.T, caught *catcher, name string) {
	t.Helper()
	s.create(t, dialer(name+"-dials", asked(), 0, caught.port))
	pod := s.startMesh(t, meshPod(name, nil))
	must(t, syscall.Kill(s.containerPID(t, pod, "app"), syscall.SIGKILL))
	s.await(t, name, func(pod *corev1.Pod) error {
		if restarts(pod) == 0 {
			return errors.New("its container has not come back")
		}
		return isRunning(pod)
	})
	s.await(t, name+"-dials", hasDialled)
	for _, name := range []string{name, name + "-dials"} {
		s.deleteWithin(t.Context(), t, name, 1)
		s.awaitEnd(t, name)
	}
}

// restarts counts how often containers of a pod were started again.
func restarts(pod *corev1.Pod) (n int32) {
	for _, c := range pod.Status.ContainerStatuses {
		n += c.RestartCount
	}
	return n
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

// An update hands the node over from agent to agent, while pods come and go: none is refused, and none passes the proxy by.
//
// Not parallel: there is one DaemonSet.
//
//e2e:rounds core nri cni
func TestUpdateUnderChurn(t *testing.T) {
	s := newSpace(t, asked())
	caught := catchAll(t)
	w, updates := s.wave(t, caught), 5
	if hook() == "core" {
		updates = 2
	}
	for range updates {
		s.rollAgent(t)
	}
	w.end(t)
	caught.wantNone(t)
	s.wantNoRefusals(t)
}
