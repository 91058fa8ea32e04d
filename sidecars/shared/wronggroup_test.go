package shared

import (
	"strings"
	"testing"
)

// The rules of pods know the proxy by its group. With another one its own connections would be led back to it.
func TestAProxyOfAnotherGroupGetsNoPods(t *testing.T) {
	t.Parallel()
	n, m, _ := newServing(t)
	a, b := n.pod("a"), n.pod("b")
	m.Follow(a, "edge")
	n.served(m, "a")
	change := func(by int64) {
		n.change(func() { n.profile.Spec.RunAsGroup += by; n.profile.Generation++ })
		m.Notify("edge")
	}
	change(1)
	m.Follow(b, "edge")
	const words = "and the SidecarProfile edge has runAsGroup "
	n.eventually("both pods and the profile say so", func() bool {
		return n.status(a).Ready && strings.Contains(n.status(a).Failure, words) &&
			!n.status(b).Ready && strings.Contains(n.status(b).Failure, words) && strings.Contains(n.summary().Message, words)
	})
	if got := n.summary(); got.Failed != 2 || got.Upgraded != 0 || n.serves() != "a" {
		t.Errorf("%+v, served: %s; want two pods that failed, and only a served", got, n.serves())
	}
	change(-1)
	n.served(m, "a b")
	n.eventually("nothing is said any more", func() bool { return n.status(a).Message == "" && n.summary().Failed == 0 })
}
