package sidecars

import (
	"testing"
	"time"

	"istio-pod-network-controller/api/v1alpha1"
)

// One pod whose new proxy always fails holds up nobody, and is tried again and again.
func TestRollouts_onePodFails_othersAreUpgraded(t *testing.T) {
	for name, pause := range map[string]bool{"with a pause": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
				n.profile.Spec.Rollout = v1alpha1.Rollout{MaxParallel: 1, PauseOnFailure: &pause}
				m, stop := agent()
				defer stop()
				uids := followMany(m, 6)
				after(2 * time.Second)
				n.change(func() {
					n.behave = only(func(p *fakeProxy) {
						if p.PodUID == "u1" {
							p.readyAfter = -1
						}
					}, image(2))
				})
				n.changeTo(m, 2)
				after(20 * time.Second)
				n.mustServe(t, uids[1:], 2)
				after(time.Minute)
				if s := n.sum(); s.Paused || s.Upgraded != 5 || s.Failed != 1 {
					t.Errorf("the profile's status is %+v", s)
				}
				n.change(func() { n.behave = only(nil) })
				after(90 * time.Second)
				n.mustServe(t, uids, 2)
			})
		})
	}
}

// Secrets are renewed although the upgrades are paused: by a proxy of the version that works.
func TestRenewSecrets_upgradesPaused_newProxyOfOldVersion(t *testing.T) {
	secretly(t, func(n *fakeNode) { n.profile.Spec.Secrets[0].UpgradeOnRotation = true }, func(t *testing.T, n *fakeNode, m *Manager) {
		n.change(func() { n.behave = only(neverReady, image(2)) })
		n.changeTo(m, 2)
		after(30 * time.Second)
		if !n.sum().Paused {
			t.Errorf("the profile's status is %+v", n.sum())
		}
		n.change(func() { n.vault.secret = map[string][]byte{"tls.crt": []byte("crt-2")} })
		after(40 * time.Second)
		said := n.said["u1"]
		if said.Epoch == 0 || said.Image != image(1) || !said.Ready {
			t.Errorf("the ManagedProxy says %+v", said)
		}
		for _, id := range n.running() {
			if c := n.containers[id]; c.Epoch == said.Epoch {
				n.mustSee(t, id, "tls", files("tls.crt", "crt-2"))
			}
		}
	})
}
