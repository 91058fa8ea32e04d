package shared

import (
	"strings"
	"testing"
	"time"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/sidecar"
)

func TestManager_podsJoinAndLeave_areServed(t *testing.T) {
	t.Parallel()
	n, m, _ := newServing(t)
	a, b := n.pod("a"), n.pod("b")
	m.Follow(a, "edge")
	n.served(m, "a")
	m.Follow(b, "edge")
	n.served(m, "a b")
	n.eventually("both are shown", func() bool {
		return n.status(a).State == v1alpha1.Running && n.status(b).Ready && n.status(b).Image == "localhost/proxy:1"
	})
	n.edit(a, func(p *fakePod) { p.chosen = "none" })
	m.Notify("edge")
	n.served(m, "b")
	n.eventually("nothing is shown of a", func() bool { return n.status(a).Profile == "" })
	n.edit(b, func(p *fakePod) { p.gone = true })
	m.Unfollow(b.UID)
	<-time.After(1500 * time.Millisecond)
	n.served(m, "b") // until its sandbox has ended
	n.edit(b, func(p *fakePod) { p.stopped = true })
	m.Notify("edge")
	n.eventually("nobody is served", func() bool { return n.serves() == "" })
	n.eventually("nothing is shown of b", func() bool { return n.status(b).Profile == "" })
}

func TestManager_podRefused_othersJoin(t *testing.T) {
	t.Parallel()
	n, m, _ := newServing(t)
	a, bad := n.pod("a"), n.pod("b", func(p *fakePod) { p.annotations = map[string]string{"note": "refused"} })
	hostile, taken := n.pod("c", func(p *fakePod) { p.annotations = map[string]string{"note": "a\npod ns-x"} }), n.pod("d", func(p *fakePod) { p.taken = true })
	vanished, twin := n.pod("e", func(p *fakePod) { p.unnamed = true }), n.pod("f", func(p *fakePod) { p.sandbox.NetNS = "/var/run/netns/ns-a" })
	last := n.pod("g")
	m.Follow(a, "edge")
	n.served(m, "a")
	m.Follow(bad, "edge")
	m.Follow(hostile, "edge")
	m.Follow(taken, "edge")
	m.Follow(vanished, "edge")
	m.Follow(twin, "edge")
	m.Follow(last, "edge")
	n.served(m, "a g")
	for s, says := range map[string]string{
		bad.UID: `cannot use "pod ns-b`, hostile.UID: "has control characters", taken.UID: "port is taken", vanished.UID: "namespace is gone",
		twin.UID: "is that of the pod shop/a",
	} {
		n.eventually(says, func() bool {
			n.mu.Lock()
			defer n.mu.Unlock()
			return strings.Contains(n.said[s].Message, says) && !strings.ContainsAny(n.said[s].Message, "\x1b\n")
		})
	}
	n.edit(bad, func(p *fakePod) { p.annotations = nil })
	n.edit(taken, func(p *fakePod) { p.taken = false })
	m.Follow(bad, "edge")
	n.served(m, "a b d g")
}

func TestManager_agentStarts_changesNothing(t *testing.T) {
	t.Parallel()
	n, m, _ := newServing(t)
	a, b := n.pod("a"), n.pod("b")
	m.Follow(a, "edge")
	m.Follow(b, "edge")
	n.served(m, "a b")
	n.stop()
	before := n.reloadCount()
	m = n.agent()
	m.Follow(a, "edge") // b is followed later
	n.served(m, "a b")
	<-time.After(1500 * time.Millisecond)
	m.Follow(b, "edge")
	<-time.After(1500 * time.Millisecond)
	n.served(m, "a b")
	if got := n.reloadCount(); got != before {
		t.Errorf("%d reloads", got-before)
	}
}

func TestManager_proxyStartsAnew_hasRemainingPods(t *testing.T) {
	t.Parallel()
	n, m, _ := newServing(t)
	for _, name := range []string{"a", "b", "c"} {
		m.Follow(n.pod(name), "edge")
	}
	n.served(m, "a b c")
	n.edit(n.pods["uid-c"].sandbox, func(p *fakePod) { p.taken = true }) // in the moment in which the proxy ends
	n.stopProxy()
	n.unserved(m, n.pods["uid-a"].sandbox)
	n.edit(n.pods["uid-b"].sandbox, func(p *fakePod) { p.unnamed = true })
	reads := n.readCount()
	m.Follow(n.pod("d"), "edge")
	pause(t.Context(), 1500*time.Millisecond)
	if got := n.readCount(); got != reads {
		t.Errorf("%d pods were read while nobody can join", got-reads)
	}
	n.eventually("the pod says why", func() bool {
		return strings.Contains(n.status(n.pods["uid-d"].sandbox).Message, "label "+sidecar.LabelShared+"=edge")
	})
	n.edit(n.pods["uid-d"].sandbox, func(p *fakePod) { p.stopped = true })
	n.eventually("the proxy starts", n.startProxy)
	n.served(m, "a")
	n.edit(n.pods["uid-c"].sandbox, func(p *fakePod) { p.taken = false })
	n.served(m, "a c")
}
