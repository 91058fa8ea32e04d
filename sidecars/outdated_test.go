package sidecars

import (
	"testing"
	"time"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/sidecars/profile"
)

// A pod that wishes for a new proxy gets one, once for each new wish and with the profile's handover, whichever agents come and go.
func TestOutdate_podWishesNewProxy_getsOne(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		for i, c := range []struct {
			wish      string
			wantEpoch uint32
		}{{"", 0}, {"a", 1}, {"a", 1}, {"b", 2}, {"", 2}} {
			n.change(func() { n.wish = Wish(c.wish) })
			m, stop := agent()
			m.Follow(sandboxOf("u1"))
			n.after(time.Minute)
			if said := n.mustSay(t, "u1", v1alpha1.Running, true); said.Epoch != c.wantEpoch || said.Restarts != 0 || said.Message != "" {
				t.Errorf("wish %d: the ManagedProxy says %+v, want epoch %d", i, said, c.wantEpoch)
			}
			stop()
		}
	})
}

func TestWish_values_areShortAndDiffer(t *testing.T) {
	if Wish("") != "" || Wish("a") == Wish("b") || len(Wish("a")) > 63 {
		t.Errorf("%q, %q, %q", Wish(""), Wish("a"), Wish("b"))
	}
}

// A pod that wishes for a new proxy while one of a new version starts says nothing of that version.
func TestOutdate_wishDuringUpgrade_isNoFailure(t *testing.T) {
	for _, handover := range []profile.Handover{profile.HandoverHAProxy, profile.HandoverNone} {
		t.Run(string(handover), func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
				n.profile.Spec.Handover = handover
				n.behave = only(func(p *fakeProxy) { p.readyAfter = 3 * time.Second }, image(2))
				m, stop := agent()
				defer stop()
				m.Follow(sandboxOf("u1"))
				n.after(time.Second)
				n.changeTo(m, 2)
				n.after(time.Second)
				n.change(func() { n.wish = Wish("a") })
				m.Notify("edge")
				n.after(20 * time.Second)
				n.mustServe(t, []string{"u1"}, 2)
				if got := m.Figures()["edge"]; got.Failed != 0 || got.Upgraded == 0 {
					t.Errorf("figures %+v", got)
				}
			})
		})
	}
}
