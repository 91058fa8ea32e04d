package e2e

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// The power is cut while the upgrades of a profile pause, since its new version does not work: after the boot the pods have proxies of the version that
// does. Not parallel: it ends everything.
//
//e2e:rounds powercut
func TestPowerCutInAPause(t *testing.T) {
	m := newManaged(t)
	names, sandboxes := []string{"first", "second"}, map[string]string{}
	for _, name := range names {
		sandboxes[name] = m.sandboxOf(t, m.startManaged(t, plainPod(name))).ID
	}
	m.patchProfile(t, map[string]any{"command": []any{"/usr/sbin/haproxy", "-db", "-f", "/none"}})
	for _, name := range names {
		m.awaitSidecar(t, name, says(true, "exit code 1"))
	}
	must(t, kc(t.Context(), "powercut"))
	m.reconnect(t)
	must(t, kc(t.Context(), "boot"))
	m.reconnect(t)
	for _, name := range names {
		m.awaitSidecar(t, name, func(status map[string]any) error {
			if status["sandbox"] == sandboxes[name] {
				return errors.New("it says how the proxy was before the power cut")
			}
			return says(true, "is not known to work")(status)
		})
		pod := m.await(t, name, func(pod *corev1.Pod) error {
			if pod.Status.ContainerStatuses[0].RestartCount == 0 {
				return errors.New("the kubelet says how it was before the power cut")
			}
			return isReadyNow(pod)
		})
		m.wantProxied(t, pod)
	}
}
