package e2e

import "testing"

// The power is cut while the upgrades of a profile pause, since its new version does not work: after the boot the pods have proxies of the version that
// does. Not parallel: it ends everything.
//
//e2e:rounds powercut
func TestPowerCutInAPause(t *testing.T) {
	m := newManaged(t)
	names := []string{"first", "second"}
	for _, name := range names {
		m.startManaged(t, plainPod(name))
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
		m.awaitSidecar(t, name, says(true, "is not known to work"))
		pod := m.await(t, name, isReadyNow)
		m.wantProxied(t, pod)
	}
}
