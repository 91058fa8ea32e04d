package shared

import (
	"strings"
	"testing"

	"istio-pod-network-controller/sidecars/profile"
)

// The rules of pods know the proxy by its group. With another one its own connections would be led back to it.
func TestWrongGID_anotherGroup_getsNoPods(t *testing.T) {
	t.Parallel()
	n, m, _ := newServing(t)
	a, b := n.pod("a"), n.pod("b")
	m.Follow(a, "edge")
	n.served(m, "a")
	change := func(by int64) {
		n.change(func() { n.profile.Spec.RunAsGroup += by })
		m.Notify("edge")
	}
	change(1)
	m.Follow(b, "edge")
	const words = "and the ProxyProfile edge has runAsGroup "
	n.eventually("both pods and the profile say so", func() bool {
		return n.status(a).Ready && strings.Contains(n.status(a).Failure, words) &&
			!n.status(b).Ready && strings.Contains(n.status(b).Failure, words) && n.summary().Failed == 2
	})
	if got := n.summary(); got.Failed != 2 || got.Upgraded != 0 || n.serves() != "a" {
		t.Errorf("%+v, served: %s; want two pods that failed, and only a served", got, n.serves())
	}
	change(-1)
	n.served(m, "a b")
	n.eventually("nothing is said any more", func() bool { return n.status(a).Message == "" && n.summary().Failed == 0 })
}

// A proxy that has not answered yet may be of any group.
func TestWrongGID_groupUnknown_isNotCompared(t *testing.T) {
	edge := &profile.Version{Name: "edge", Spec: profile.Spec{RunAsGroup: 1337}}
	for name, c := range map[string]struct {
		proxy   proxy
		profile *profile.Version
		wrong   bool
	}{
		"it has not answered":   {proxy{}, edge, false},
		"the profile's":         {proxy{answered: true, gid: 1337}, edge, false},
		"another":               {proxy{answered: true, gid: 1338}, edge, true},
		"no profile to compare": {proxy{answered: true, gid: 1338}, nil, false},
	} {
		if why := wrongGID(&c.proxy, c.profile); (why != "") != c.wrong {
			t.Errorf("%s: %q", name, why)
		}
	}
}
