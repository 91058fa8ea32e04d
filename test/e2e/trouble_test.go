package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// restartDaemon ends a daemon of the node and starts it anew; containers live on.
func (c *cluster) restartDaemon(t *testing.T, name string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "kc", "restart", name).CombinedOutput(); err != nil {
		t.Fatalf("restart %s: %v\n%s", name, err, out)
	}
}

// killAgent ends the agent's process at once. The kubelet starts it again, after a back-off from the second time on.
func (c *cluster) killAgent(t *testing.T) {
	t.Helper()
	agent := c.agent(t)
	must(t, syscall.Kill(c.containerPID(t, agent, "agent"), syscall.SIGKILL))
	eventually(t, "the agent's restart", func(ctx context.Context) error {
		now, err := c.findAgent(ctx)
		if err == nil && now.Status.ContainerStatuses[0].RestartCount == agent.Status.ContainerStatuses[0].RestartCount {
			err = errors.New("it has not been restarted")
		}
		return err
	})
}

// stopAgent has the agent stand still for a while, longer than a runtime waits for it.
func (c *cluster) stopAgent(t *testing.T, lasting time.Duration) {
	t.Helper()
	pid := c.containerPID(t, c.agent(t), "agent")
	must(t, syscall.Kill(pid, syscall.SIGSTOP))
	select {
	case <-t.Context().Done():
	case <-time.After(lasting):
	}
	must(t, syscall.Kill(pid, syscall.SIGCONT))
}

// rollAgent updates the DaemonSet, and returns when another agent has taken over.
func (c *cluster) rollAgent(t *testing.T) {
	t.Helper()
	old := c.agent(t)
	c.patchDaemonSet(t, map[string]any{"metadata": map[string]any{"annotations": map[string]any{"rolled": time.Now().String()}}})
	eventually(t, "another agent", func(ctx context.Context) error {
		now, err := c.findAgent(ctx)
		if err == nil && now.UID == old.UID {
			err = errors.New("it is still the old one")
		}
		return err
	})
}

// sendAgentAway takes the agent off the node, and gives what brings it back, at the end of the test at the latest.
func (c *cluster) sendAgentAway(t testing.TB) (back func()) {
	t.Helper()
	const label = "e2e.example/nowhere"
	c.patchDaemonSet(t, map[string]any{"spec": map[string]any{"nodeSelector": map[string]any{label: "yes"}}})
	returned := false
	back = func() {
		t.Helper()
		if !returned {
			returned = true
			c.patchDaemonSet(t, map[string]any{"spec": map[string]any{"nodeSelector": map[string]any{label: nil}}})
			c.agent(t)
		}
	}
	t.Cleanup(back)
	eventually(t, "the agent's end", func(ctx context.Context) error {
		list, err := c.api.CoreV1().Pods(agentName).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + agentName})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("there are %d pods of it", len(list.Items))
		}
		return err
	})
	return back
}

// patchDaemonSet changes the agent's pod template.
func (c *cluster) patchDaemonSet(t testing.TB, template map[string]any) {
	t.Helper()
	data, err := json.Marshal(map[string]any{"spec": map[string]any{"template": template}})
	must(t, err)
	_, err = c.api.AppsV1().DaemonSets(agentName).Patch(context.WithoutCancel(t.Context()), agentName, types.StrategicMergePatchType, data, metav1.PatchOptions{})
	must(t, err)
}

// Every trouble that a node can have, while pods start: they wait, or start with their rules.
//
// Not parallel: it makes the node unfit for anything else.
//
//e2e:rounds cni
func TestAlwaysNothingBypassesTheProxyInTrouble(t *testing.T) {
	s := newSpace(t, asked())
	caught := catchAll(t)
	w := s.wave(t, caught)
	troubles := []struct {
		name string
		make func()
	}{
		{"the agent is killed", func() { s.killAgent(t) }},
		{"the agent stands still", func() { s.stopAgent(t, 5*time.Second) }},
		{"the container runtime is restarted", func() { s.restartDaemon(t, s.node.Runtime) }},
		{"the kubelet is restarted", func() { s.restartDaemon(t, "kubelet") }},
		{"the agent is updated", func() { s.rollAgent(t) }},
	}
	for _, trouble := range troubles {
		before, err := w.dialled(t.Context())
		must(t, err)
		began := time.Now()
		trouble.make()
		// Some pods start before the next trouble: each has to be survived, not all together.
		eventually(t, "pods after: "+trouble.name, func(ctx context.Context) error {
			now, err := w.dialled(ctx)
			if err == nil && now < before+3 {
				err = fmt.Errorf("%d pods have dialled since", now-before)
			}
			return err
		})
		t.Logf("%s: over after %s", trouble.name, time.Since(began).Round(100*time.Millisecond))
	}
	w.end(t)
	caught.wantNone(t)
}

// dialled counts the pods of the wave that have dialled.
func (w *wave) dialled(ctx context.Context) (n int, err error) {
	list, err := w.pods().List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	for i := range list.Items {
		if hasDialled(&list.Items[i]) == nil {
			n++
		}
	}
	return n, nil
}

// Pods that ask are held while there is no agent, and start by themselves when it is back.
//
//e2e:rounds required wait cni
func TestAlwaysPodsAreHeldWhileTheAgentIsAway(t *testing.T) {
	s := newSpace(t, asked())
	s.awaitPolicy(t)
	caught := catchAll(t)
	back := s.sendAgentAway(t)
	for i := range families() {
		s.create(t, dialer(fmt.Sprintf("held-%d", i), asked(), i, caught.port))
	}
	free := catchAll(t)
	others := s.freeSpace()
	others.create(t, dialer("free", nil, 0, free.port))
	t.Cleanup(func() { others.deleteWithin(context.WithoutCancel(t.Context()), t, "free", 0) })
	others.await(t, "free", hasDialled)
	for i := range families() {
		s.awaitHeld(t, fmt.Sprintf("held-%d", i))
	}
	if free.none() {
		t.Error("a pod that did not ask reached nobody")
	}
	s.awaitStatus(t, os.Getenv("KUBECONFIG"), 1, "none", "no agent, and 2 pods ask here", "trouble: the cluster has no agent", "2 no-agent")
	back()
	for i := range families() {
		s.await(t, fmt.Sprintf("held-%d", i), hasDialled)
		s.await(t, fmt.Sprintf("held-%d", i), hasStatus(statusInitialized))
	}
	caught.wantNone(t)
}

// freeSpace is a namespace whose pods start without an agent. The CNI chain has nobody to ask who wants redirection: it lets
// excluded namespaces through.
func (s *space) freeSpace() *space {
	if hook() == "cni" {
		return &space{cluster: s.cluster, name: "kube-system"}
	}
	return s
}

// awaitHeld waits until a pod is kept from starting in the way of this run.
func (s *space) awaitHeld(t *testing.T, pod string) {
	t.Helper()
	switch hook() {
	case "cni":
		s.awaitEvent(t, pod, "FailedCreatePodSandBox", agentName)
	case "required":
		s.awaitEvent(t, pod, "Failed", agentName)
	default:
		s.await(t, pod, func(pod *corev1.Pod) error {
			if c := pod.Status.InitContainerStatuses; len(c) == 0 || c[0].State.Running == nil {
				return fmt.Errorf("its first container does not run: %v", c)
			}
			return nil
		})
	}
	s.await(t, pod, func(pod *corev1.Pod) error {
		if hasRun(pod) {
			t.Fatalf("pod %s has run", pod.Name)
		}
		return nil
	})
}
