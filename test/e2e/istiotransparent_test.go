package e2e

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// Applications behind Istio's proxy in mode TPROXY see their clients' addresses, in clear text and by mTLS, also after an upgrade.
func (o outside) transparent(t *testing.T) {
	m := o.mesh(t, func(spec map[string]any) { spec["transparent"] = true })
	pods := []*corev1.Pod{m.create(t, m.member(t, "store", "v1")), m.create(t, m.member(t, "shopper", "v1"))}
	m.wantIdentities(t, pods)
	store, shopper := pods[0], pods[1]
	seen := func() {
		t.Helper()
		m.asks(t, identityWithin, shopper, meshURL("store"), func(a answer) error {
			if a.peer().String() != shopper.Status.PodIP {
				return fmt.Errorf("the application saw %s, want %s", a.Peer, shopper.Status.PodIP)
			}
			return m.calledBy(a, "store", "shopper")
		})
		f := families()[0]
		var a answer
		if must(t, request(t.Context(), at(store, f, meshPort), "/", &a)); a.peer() != f.client {
			t.Errorf("the application saw %s, want %s", a.Peer, f.client)
		}
	}
	seen()
	before, err := m.sidecar(t.Context(), store.Name)
	must(t, err)
	m.patchProfile(t, version(1))
	m.awaitSidecar(t, store.Name, isUpgraded(before))
	seen()
}
