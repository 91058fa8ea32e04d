package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A new version of the DaemonSet takes over from the old one, a broken one changes nothing, and another new one takes over: under load no
// connection of the node's pods is lost, not even if the hook ends that has the old one finish its connections.
//
//e2e:rounds nri
func TestSharedProxyIsReplaced(t *testing.T) {
	t.Parallel()
	m := newShared(t, sharedSwap, withOneThread(t))
	set := m.daemonSet(t)
	m.patchDaemonSet(t, map[string]any{"minReadySeconds": 1})
	// The connection that stays open is at the present worker: Debian 12's HAProxy may crash when that ends, and its master would end all others for it.
	other := m.startManaged(t, plainPod("other"))
	b := m.startBusy(t, "busy")

	first := m.sharedPod(t)
	second := m.replaceShared(t, first, "2")
	m.endPreStop(t, first)
	b.held.say(t, "after the first upgrade")

	m.setVersion(t, "broken", []string{"exit 1"})
	eventually(t, "the broken version ends", func(ctx context.Context) error {
		pods, err := m.proxyPods(ctx)
		for _, p := range pods {
			if s := p.Status.ContainerStatuses; p.UID != second.UID && len(s) > 0 && s[0].RestartCount > 0 {
				return err
			}
		}
		return errors.Join(err, fmt.Errorf("there are %d pods", len(pods)))
	})
	b.held.say(t, "after the broken version")
	if now, err := m.api.CoreV1().Pods(agentName).Get(t.Context(), second.Name, metav1.GetOptions{}); err != nil || now.DeletionTimestamp != nil || isReadyNow(now) != nil {
		t.Errorf("the pod before the broken version: error %v, %+v", err, now.Status)
	}

	m.setVersion(t, "3", set.Spec.Template.Spec.Containers[0].Args)
	m.awaitReplaced(t, second)
	b.held.say(t, "after the second upgrade")
	for _, pod := range []*corev1.Pod{b.pod, other} {
		var a answer
		must(t, request(t.Context(), at(pod, families()[0], appPort), "/", &a))
		if a.peer() != families()[0].passthrough {
			t.Errorf("%s saw %s, want the proxy", pod.Name, a.Peer)
		}
	}
	b.awaitEnough(t)
	sent := b.stop(t)
	b.wantKept(t, sent)
	t.Logf("%d inbound and %d outbound connections", b.in.asked, sent.OK)
}

// endPreStop kills the hook of a pod that ends, as a restart of the container runtime does, and waits until the kubelet has noticed.
func (m managed) endPreStop(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", m.containerPID(t, pod, "proxy")))
	must(t, err)
	eventually(t, "the hook of "+pod.Name, func(context.Context) error {
		all, err := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, file := range all {
			line, _ := os.ReadFile(file) // it may have ended
			if space, err := os.Readlink(filepath.Join(filepath.Dir(file), "ns/pid")); err != nil || space != own || !strings.Contains(string(line), "kill -USR1 1;") {
				continue
			}
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			return errors.Join(err, syscall.Kill(pid, syscall.SIGKILL))
		}
		return errors.Join(err, errors.New("it does not run"))
	})
	(&space{cluster: m.cluster, name: agentName}).awaitEvent(t, pod.Name, "FailedPreStopHook", "")
}

func (m managed) daemonSet(t *testing.T) *appsv1.DaemonSet {
	t.Helper()
	set, err := m.api.AppsV1().DaemonSets(agentName).Get(t.Context(), agentName+"-shared-"+m.profile, metav1.GetOptions{})
	must(t, err)
	return set
}

func (m managed) patchDaemonSet(t *testing.T, spec map[string]any) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"spec": spec})
	must(t, err)
	_, err = m.api.AppsV1().DaemonSets(agentName).Patch(t.Context(), agentName+"-shared-"+m.profile, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	must(t, err)
}

// setVersion gives the DaemonSet another version, and another one in each run of a test.
func (m managed) setVersion(t *testing.T, version string, args []string) {
	t.Helper()
	m.patchDaemonSet(t, map[string]any{"template": map[string]any{"spec": map[string]any{"containers": []any{map[string]any{
		"name": "proxy", "args": args, "env": []any{map[string]any{"name": "E2E_VERSION", "value": m.name + " " + version}},
	}}}}})
}

// replaceShared gives the DaemonSet another version, and waits until that has replaced the pod before. It returns the new pod.
func (m managed) replaceShared(t *testing.T, old *corev1.Pod, version string) *corev1.Pod {
	t.Helper()
	m.setVersion(t, version, m.daemonSet(t).Spec.Template.Spec.Containers[0].Args)
	return m.awaitReplaced(t, old)
}

// awaitReplaced waits until a new pod of the DaemonSet is ready, and the old one ends.
func (m managed) awaitReplaced(t *testing.T, old *corev1.Pod) (next *corev1.Pod) {
	t.Helper()
	eventually(t, "another pod of the proxy", func(ctx context.Context) error {
		pods, err := m.proxyPods(ctx)
		next = nil
		for i, p := range pods {
			if p.UID == old.UID && p.DeletionTimestamp == nil {
				err = errors.Join(err, errors.New("the old one stays"))
			}
			if p.UID != old.UID && p.DeletionTimestamp == nil && isReadyNow(&pods[i]) == nil {
				next = &pods[i]
			}
		}
		if next == nil {
			err = errors.Join(err, fmt.Errorf("no new one is ready of %d", len(pods)))
		}
		return err
	})
	return next
}

func (m managed) proxyPods(ctx context.Context) ([]corev1.Pod, error) {
	list, err := m.api.CoreV1().Pods(agentName).List(ctx, metav1.ListOptions{LabelSelector: keySharedProxy + "=" + m.profile})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}
