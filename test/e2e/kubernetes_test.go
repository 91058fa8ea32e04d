package e2e

import (
	"slices"
	"testing"
	"time"
)

// The cluster goes over from the release that it was started with to the kit's, control plane first, kubelet last, while pods with proxies are
// under load: no connection fails or breaks, no container is started again, no proxy is replaced. Behind it profiles, pods and the agent's next start
// work as before.
//
// Not parallel: it is the round's only test.
//
//e2e:rounds kubernetes
func TestKubernetesIsUpgradedUnderLoad(t *testing.T) {
	m := newManaged(t, drainsLong)
	b := m.startUnderLoad(t, loadedPods, loadedPods*loadedEvery)
	version := func() string { return m.nodeStatus(t).NodeInfo.KubeletVersion }
	processes := func() (pids []int) {
		for _, pod := range b.pods {
			pids = append(pids, m.containerPID(t, pod, managedProxy))
		}
		return pids
	}
	from, before := version(), processes()
	began := time.Now()
	must(t, kc(t.Context(), "upgrade"))
	to := version()
	if from == to {
		t.Fatalf("the kubelet was of %s before: E2E_KUBERNETES=1.36.3 names another release to start with", from)
	}
	t.Logf("from %s to %s in %s", from, to, time.Since(began).Round(time.Millisecond))
	b.say(t, "behind Kubernetes' upgrade")
	for _, pod := range b.pods {
		if n := restarts(m.await(t, pod.Name, isReadyNow)); n != 0 {
			t.Errorf("containers of %s were started again %d times", pod.Name, n)
		}
	}
	if after := processes(); !slices.Equal(after, before) {
		t.Errorf("the proxies are the processes %v, and were %v", after, before)
	}
	m.startManaged(t, plainPod("behind"))
	m.killAgent(t)
	status, err := m.sidecar(t.Context(), b.pods[0].Name)
	must(t, err)
	m.newVersion(t, "behind")
	for _, pod := range b.pods {
		m.awaitSidecar(t, pod.Name, isUpgraded(status))
	}
	b.say(t, "behind the proxies' upgrade")
	b.wantNoneLost(t)
}
