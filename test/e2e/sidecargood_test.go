package e2e

import (
	"context"
	"fmt"
	"maps"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// unknownKeyword is no line of a configuration: HAProxy ends at once.
const unknownKeyword = "no-such-keyword"

// A version that fails reaches neither proxies that are started again nor a new pod: the version before serves all.
//
//e2e:rounds nri
func TestProxyKnownBadVersion(t *testing.T) {
	t.Parallel()
	m := newManaged(t, func(spec map[string]any) { spec["rollout"] = map[string]any{"maxParallel": int64(1)} })
	pods := m.startSome(t, "served-0", "served-1", "served-2", "served-3")
	before, err := m.sidecar(t.Context(), pods[0].Name)
	must(t, err)
	mended := m.files(t)
	m.patchProfile(t, map[string]any{"files": withLine(t, mended, unknownKeyword)})
	m.awaitCounts(t, map[string]any{"pods": int64(4), "upgraded": int64(0), "failed": int64(3), "nodesPaused": int64(1)})
	for _, pod := range pods {
		m.killRunning(t, pod)
	}
	pods = append(pods, m.startManaged(t, plainPod("new")))
	for _, pod := range pods {
		m.awaitSidecar(t, pod.Name, func(status map[string]any) error {
			if status["profileHash"] != before["profileHash"] || pod.Name != "new" && status["restarts"] != int64(1) {
				return fmt.Errorf("it is not a new one of the version before: %v", status)
			}
			return says(true, "is not known to work on this node")(status)
		})
		m.await(t, pod.Name, isReadyNow)
		m.wantProxied(t, pod)
	}
	m.patchProfile(t, map[string]any{"files": mended, "env": []any{map[string]any{"name": "MENDED", "value": "1"}}})
	for _, pod := range pods {
		m.awaitSidecar(t, pod.Name, isUpgraded(before))
	}
	m.awaitCounts(t, map[string]any{"pods": int64(5), "upgraded": int64(5), "failed": int64(0)})
}

// One pod whose new proxy always fails is tried again and again, and holds up no other pod of its profile.
//
//e2e:rounds nri
func TestProxyOnePodHoldsUpNobody(t *testing.T) {
	t.Parallel()
	m := newManaged(t, func(spec map[string]any) { spec["rollout"] = map[string]any{"maxParallel": int64(1)} })
	pods := m.startSome(t, "fails", "works-0", "works-1", "works-2")
	before, err := m.sidecar(t.Context(), "fails")
	must(t, err)
	mended := m.files(t)
	m.patchProfile(t, map[string]any{"files": withLine(t, mended, `{{ if eq .Pod.Name "fails" }}`+unknownKeyword+`{{ end }}`)})
	for _, pod := range pods[1:] {
		m.awaitSidecar(t, pod.Name, isUpgraded(before))
	}
	m.awaitSidecar(t, "fails", func(status map[string]any) error {
		if status["profileHash"] != before["profileHash"] {
			return fmt.Errorf("it is not of the version before: %v", status)
		}
		return says(true, "exit code 1")(status)
	})
	m.awaitCounts(t, map[string]any{"pods": int64(4), "upgraded": int64(3), "failed": int64(1), "nodesPaused": int64(0)})
	m.wantProxied(t, pods[0])
	m.patchProfile(t, map[string]any{"files": mended, "env": []any{map[string]any{"name": "MENDED", "value": "1"}}})
	m.awaitSidecar(t, "fails", isUpgraded(before))
	m.awaitCounts(t, map[string]any{"pods": int64(4), "upgraded": int64(4), "failed": int64(0), "nodesPaused": int64(0)})
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

// files returns the profile's files.
func (m managed) files(t *testing.T) []any {
	t.Helper()
	profile, err := m.objects.Resource(sidecarKind("proxyprofiles")).Get(t.Context(), m.profile, metav1.GetOptions{})
	must(t, err)
	files, _, err := unstructured.NestedSlice(profile.Object, "spec", "files")
	must(t, err)
	return files
}

// withLine returns files with a line at the end of the first one.
func withLine(t *testing.T, files []any, line string) []any {
	t.Helper()
	first, ok := files[0].(map[string]any)
	if !ok {
		t.Fatalf("the profile's first file is %v", files[0])
	}
	changed := maps.Clone(first)
	changed["template"] = fmt.Sprintf("%s\n%s\n", first["template"], line)
	return append([]any{changed}, files[1:]...)
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
