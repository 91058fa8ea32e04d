package e2e

import (
	"errors"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// Somebody deletes a ManagedProxy: it comes back, as it was.
//
//e2e:rounds nri
func TestSidecarManagedProxyDeletedByHandComesBack(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	m.startManaged(t, plainPod("shown"))
	m.awaitSidecar(t, "shown", isServing(0))
	must(t, m.objects.Resource(sidecarKind("managedproxies")).Namespace(m.name).Delete(t.Context(), "shown", metav1.DeleteOptions{}))
	m.awaitSidecar(t, "shown", isServing(0))
}
