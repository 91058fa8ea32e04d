package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// guests are how many pods come to the loaded proxy one by one.
const guests = 5

// Pods come to the node's proxy and leave it in every way, and the agent is killed: each change is a reload, and the connections of a pod that
// stays do not notice. The agent's restart is none.
//
// Not parallel: it ends the agent.
//
//e2e:rounds nri
func TestSidecarSharedLosesNothing(t *testing.T) {
	m := newShared(t, sharedLoad, withOneThread(t))
	b := m.startBusy(t, "busy")
	versions := map[string]bool{m.version(t): true}
	var pods []*corev1.Pod
	for i := range guests {
		pod := m.startManaged(t, plainPod(fmt.Sprintf("guest-%d", i)))
		m.wantShared(t, pod)
		versions[m.version(t)] = true
		pods = append(pods, pod)
	}
	b.held.say(t, "after pods have come")

	m.leaveAll(t, pods)
	versions[m.version(t)] = true
	b.held.say(t, "after pods have left")

	version, proxy := m.version(t), m.sharedPod(t)
	loads := m.loads(t)
	m.killAgent(t)
	late := m.startManaged(t, plainPod("late"))
	m.wantShared(t, late)
	if now := m.loads(t); now != loads+1 || m.version(t) == version {
		t.Errorf("the proxy was reloaded %d times for one new pod and a new agent; its version was %s, is %s", now-loads, version, m.version(t))
	}
	if now := m.sharedPod(t); now.UID != proxy.UID || now.Status.ContainerStatuses[0].RestartCount != proxy.Status.ContainerStatuses[0].RestartCount {
		t.Errorf("the proxy is not the one before: %+v", now.Status.ContainerStatuses)
	}

	sent := b.stop(t)
	b.wantKept(t, sent)
	// Its first connection, by which it waited for the proxy, is in the log as well.
	if n := m.passed(t, "busy", "outbound", b.world); n != sent.OK+1 {
		t.Errorf("outbound: the proxy made %d connections for %d of the application", n, sent.OK+1)
	}
	reloads := m.loads(t) - 1
	t.Logf("%d inbound and %d outbound connections over %d reloads", b.in.asked, sent.OK, reloads)
	if reloads < guests || len(versions) < guests {
		t.Errorf("the proxy was reloaded %d times, and had %d versions", reloads, len(versions))
	}
}

// loads counts how often the proxy has read its configuration.
func (m managed) loads(t *testing.T) int {
	t.Helper()
	return strings.Count(m.sharedLog(t), "New worker (")
}

// leaveAll has pods leave the proxy: deleted with and without grace, opted out, and by the end of the sandbox, whose pod comes back in another.
func (m managed) leaveAll(t *testing.T, pods []*corev1.Pod) {
	t.Helper()
	now := int64(0)
	must(t, m.pods().Delete(t.Context(), pods[0].Name, metav1.DeleteOptions{}))
	must(t, m.pods().Delete(t.Context(), pods[1].Name, metav1.DeleteOptions{GracePeriodSeconds: &now}))
	m.annotate(t, pods[2].Name, map[string]any{keySidecar: "none"})
	ended := m.sandboxOf(t, pods[3])
	_, err := m.runtime.StopPodSandbox(t.Context(), &criv1.StopPodSandboxRequest{PodSandboxId: ended.ID})
	must(t, err)

	m.await(t, pods[2].Name, hasStatus(statusRemoved))
	m.wantNoRules(t, pods[2])
	var a answer
	must(t, request(t.Context(), at(pods[2], families()[0], appPort), "/", &a))
	if a.peer() != families()[0].client {
		t.Errorf("the application of a pod that has opted out saw %s, want its client", a.Peer)
	}
	eventually(t, "another sandbox of "+pods[3].Name, func(ctx context.Context) error {
		s, err := m.findSandbox(ctx, pods[3])
		if err == nil && s.ID == ended.ID {
			err = errors.New("it is the old one")
		}
		return err
	})
	var again *corev1.Pod
	eventually(t, "the pod in its other sandbox", func(ctx context.Context) error {
		var err error
		if again, err = m.pods().Get(ctx, pods[3].Name, metav1.GetOptions{}); err != nil {
			return err
		}
		var a answer
		if err := errors.Join(isRunning(again), isReadyNow(again)); err != nil {
			return err
		}
		return request(ctx, at(again, families()[0], appPort), "/", &a)
	})
	m.wantShared(t, again)
}
