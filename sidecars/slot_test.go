package sidecars

import (
	"slices"
	"strings"
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
				n.after(2 * time.Second)
				n.change(func() {
					n.behave = only(func(p *fakeProxy) {
						if p.PodUID == "u1" {
							p.readyAfter = -1
						}
					}, image(2))
				})
				n.changeTo(m, 2)
				n.after(20 * time.Second)
				n.mustServe(t, uids[1:], 2)
				n.after(time.Minute)
				if s := n.sum(); s.Paused || s.Upgraded != 5 || s.Failed != 1 {
					t.Errorf("the profile's status is %+v", s)
				}
				n.change(func() { n.behave = only(nil) })
				n.after(90 * time.Second)
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
		n.after(30 * time.Second)
		if !n.sum().Paused {
			t.Errorf("the profile's status is %+v", n.sum())
		}
		n.change(func() { n.vault.secret = map[string][]byte{"tls.crt": []byte("crt-2")} })
		n.after(40 * time.Second)
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

// startsNext has pods follow a profile that upgrades one of them at a time. It returns them, and which one starts the second version: for ten minutes.
func (n *fakeNode) startsNext(m *Manager, pods int) (uids []string, has string) {
	n.change(func() {
		n.profile.Spec.Rollout.MaxParallel, n.profile.Spec.Readiness.StartSeconds = 1, 600
		n.behave = only(func(p *fakeProxy) {
			if has == "" {
				has, p.readyAfter = p.PodUID, -1
			}
		}, image(2))
	})
	uids = followMany(m, pods)
	n.after(time.Second)
	n.changeTo(m, 2)
	n.after(time.Second)
	return uids, has
}

// A pod that has its turn, and chooses another profile, holds up nobody.
func TestTakeTurn_podChoosesOtherProfile_othersAreUpgraded(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		defer stop()
		uids, has := n.startsNext(m, 2)
		n.change(func() {
			other := n.profile
			other.Name = "other"
			n.choices = map[string]*fakeProfile{has: &other}
		})
		m.Notify("edge")
		n.after(time.Minute)
		n.mustServe(t, slices.DeleteFunc(uids, func(uid string) bool { return uid == has }), 2)
	})
}

// Pods whose own labels or annotations keep their proxies from being made hold up nobody, and do not pause the profile: whoever owns a pod could.
func TestTakeTurn_podsOwnFault_othersAreUpgraded(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.profile.Spec.Rollout.MaxParallel = 1
		n.meshed.labels = map[string]string{"app": "two words"}
		m, stop := agent()
		defer stop()
		uids := followMany(m, 6)
		n.after(time.Second)
		n.change(func() {
			n.profile.Spec.Files = []v1alpha1.File{{Name: "a", Template: `{{ if lt .Pod.UID "u5" }}{{ .Pod.Labels.app }}{{ end }}`}}
		})
		n.changeTo(m, 2)
		n.after(time.Minute)
		n.mustServe(t, uids[4:], 2)
		for _, uid := range uids[:4] {
			if said := n.said[uid]; !said.Ready || !strings.Contains(said.Message, `value "two words"`) || said.Image != image(1) || said.FailedHash == "" {
				t.Errorf("%s: %+v", uid, said)
			}
		}
		if m.Rollout.Paused("edge") {
			t.Error("the profile is paused")
		}
	})
}

// A pod that has its turn when its sandbox dies, which is not made anew, holds up nobody.
func TestTakeTurn_sandboxDies_othersAreUpgraded(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		defer stop()
		uids, has := n.startsNext(m, 3)
		n.change(func() { n.stopped = map[string]bool{"sandbox-" + has: true} })
		for id, c := range n.containers {
			if c.PodUID == has {
				n.end(id, 137)
			}
		}
		n.after(time.Minute)
		n.mustServe(t, slices.DeleteFunc(uids, func(uid string) bool { return uid == has }), 2)
	})
}

// A pod whose old proxies still drain has no room for an upgrade, and holds up nobody meanwhile.
func TestTakeTurn_oldProxiesDrain_othersAreUpgraded(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.profile.Spec.Rollout.MaxParallel, n.profile.Spec.Rollout.DrainSeconds = 1, 600
		n.behave = func(p *fakeProxy) {
			p.readyAfter, p.drains = 200*time.Millisecond, time.Second
			if p.PodUID != "u6" {
				p.drains = -1
			}
		}
		n.sharePorts()
		m, stop := agent()
		defer stop()
		uids := followMany(m, 6)
		n.after(time.Second)
		n.changeTo(m, 2)
		n.after(30 * time.Second)
		n.mustServe(t, uids, 2)
		n.changeTo(m, 3)
		n.after(30 * time.Second)
		n.mustServe(t, uids[5:], 3)
		n.mustServe(t, uids[:5], 2, "waits until an older proxy has finished its connections")
		n.after(10 * time.Minute)
		n.mustServe(t, uids, 3)
	})
}

// A version that is still starting when its agent ends makes room for the next version at once.
func TestTakeTurn_newAgentFindsStart_nextVersionReplacesIt(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.profile.Spec.Readiness.StartSeconds = 600
		n.behave = only(neverReady, image(2))
		n.sharePorts()
		m, stop := agent()
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		n.changeTo(m, 2)
		n.after(time.Second)
		stop()
		m, stop = agent()
		defer stop()
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		n.changeTo(m, 3)
		n.after(5 * time.Second)
		n.mustServe(t, []string{"u1"}, 3)
	})
}

// A profile that is edited while a proxy is made leaves the pod with its last version.
func TestUpgrade_profileIsEditedMeanwhile_lastVersionServes(t *testing.T) {
	for _, call := range []string{"create", "start", "signal", "remove"} {
		t.Run(call, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
				m, stop := agent()
				defer stop()
				m.Follow(sandboxOf("u1"))
				n.after(time.Second)
				n.during = map[string]func(){call: func() { n.profile.Spec.Image = image(3) }}
				n.changeTo(m, 2)
				n.after(time.Minute)
				n.mustServe(t, []string{"u1"}, 3)
			})
		})
	}
}
