package e2e

import (
	"errors"
	"testing"
)

// A namespace that names no profile any more takes no proxy from a pod that runs: rules lead to it, so one that ends is started again. Each is killed
// twice, since the agent may not have seen the namespace yet the first time.
//
//e2e:rounds nri
func TestSidecarNamespaceChoosesNoMore(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	pod := m.startManaged(t, plainPod("kept"))
	killed := int64(0)
	for _, choice := range []any{"none", nil} {
		m.annotateSelf(t, map[string]any{keySidecar: choice})
		for range 2 {
			m.killRunning(t, pod)
			killed++
			m.awaitSidecar(t, pod.Name, func(status map[string]any) error {
				return errors.Join(isServing(killed)(status), equal(status["restarts"], killed))
			})
			m.wantProxied(t, pod)
		}
	}
}
