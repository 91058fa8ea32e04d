package e2e

import (
	"context"
	"fmt"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// A profile is waited for as a Deployment is: kubectl wait --for=condition=Upgraded proxyprofile/NAME.
//
//e2e:rounds nri
func TestProxyProfileSaysHowFarItIs(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	m.startManaged(t, plainPod("counted"))
	m.awaitCondition(t, "Upgraded", "Upgraded")
	m.patchProfile(t, map[string]any{"image": missingImage})
	m.awaitCondition(t, "Failed", "Paused")
	m.patchProfile(t, map[string]any{"image": sidecarsImage})
	m.awaitCondition(t, "Upgraded", "Upgraded")
}

// While the profile is paused no node begins with a new version: proxies run on, and one that is started again is of the version before.
//
//e2e:rounds nri
func TestProxyProfilePausedUpgradesNobody(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	pods := m.startSome(t, "waits-0", "waits-1")
	before, err := m.sidecar(t.Context(), pods[0].Name)
	must(t, err)
	m.patchProfile(t, map[string]any{
		"update": map[string]any{"paused": true, "maxNodes": int64(1)}, "env": []any{map[string]any{"name": "VERSION", "value": "2"}},
	})
	m.awaitReason(t, "Upgraded", metav1.ConditionFalse, "Paused")
	m.killRunning(t, pods[0])
	m.awaitSidecar(t, pods[0].Name, func(status map[string]any) error {
		if status["restarts"] != int64(1) || status["ready"] != true {
			return fmt.Errorf("it was not started again: %v", status)
		}
		return nil
	})
	for _, pod := range pods {
		now, err := m.sidecar(t.Context(), pod.Name)
		must(t, err)
		if now["profileHash"] != before["profileHash"] {
			t.Errorf("%s was upgraded: %v", pod.Name, now)
		}
	}
	m.patchProfile(t, map[string]any{"update": map[string]any{"paused": false}})
	for _, pod := range pods {
		m.awaitSidecar(t, pod.Name, isUpgraded(before))
	}
	m.awaitCondition(t, "Upgraded", "Upgraded")
}

// awaitCondition waits until a condition of the profile's present version is True for a reason.
func (m managed) awaitCondition(t *testing.T, kind, reason string) {
	t.Helper()
	m.awaitReason(t, kind, metav1.ConditionTrue, reason)
}

// awaitReason is awaitCondition for any status of it.
func (m managed) awaitReason(t *testing.T, kind string, is metav1.ConditionStatus, reason string) {
	t.Helper()
	eventually(t, "the profile's condition "+kind, func(ctx context.Context) error {
		profile, err := m.objects.Resource(sidecarKind("proxyprofiles")).Get(ctx, m.profile, metav1.GetOptions{})
		if err != nil {
			return err
		}
		status, _, err := unstructured.NestedMap(profile.Object, "status")
		if err != nil {
			return err
		}
		var said struct {
			Conditions []metav1.Condition `json:"conditions"`
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(status, &said); err != nil {
			return err
		}
		c := meta.FindStatusCondition(said.Conditions, kind)
		if c == nil || c.Status != is || c.Reason != reason || c.ObservedGeneration != profile.GetGeneration() {
			return fmt.Errorf("want %s, its status is %v", reason, status)
		}
		return nil
	})
}

// startSome makes pods and waits until they are ready.
func (m managed) startSome(t *testing.T, names ...string) (pods []*corev1.Pod) {
	t.Helper()
	for _, name := range names {
		m.create(t, plainPod(name))
	}
	for _, name := range names {
		pods = append(pods, m.await(t, name, isReadyNow))
	}
	return pods
}

// killRunning ends a pod's proxy while others are tried beside it.
func (m managed) killRunning(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	eventually(t, "the end of the proxy of "+pod.Name, func(ctx context.Context) error {
		pid, err := m.findContainerPID(ctx, pod, managedProxy)
		if err != nil {
			return err
		}
		return syscall.Kill(pid, syscall.SIGKILL)
	})
}
