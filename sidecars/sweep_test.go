package sidecars

import (
	"slices"
	"testing"
	"time"

	"istio-pod-network-controller/internal/sidecar"
)

// A proxy whose pod ended while one agent took over from another is followed by none: the pod is no longer visited.
func TestSweep_podEndedBetweenAgents_proxyIsEnded(t *testing.T) {
	for name, c := range map[string]struct {
		ends func(*fakeNode)
		want []string
	}{
		"it is being deleted": {func(n *fakeNode) { n.ending = true }, []string{"c001 SIGUSR1", "c001 SIGKILL"}},
		"it is gone":          {func(n *fakeNode) { n.gone = true }, []string{"c001 SIGUSR1", "c001 SIGKILL"}},
		"it runs":             {func(*fakeNode) {}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
				n.behave = func(p *fakeProxy) { p.readyAfter, p.drains = time.Millisecond, -1 }
				s := &signalled{applications: &applications{fakeNode: n, all: []sidecar.Application{{ID: "app", Name: "app", State: sidecar.Running}}}}
				_, stop := s.looksAfter(agent)
				stop()
				n.change(func() { c.ends(n) })
				n.arrange = func(m *Manager) { m.Runtime, m.Cluster = s, s }
				_, stop = agent()
				defer stop()
				n.after(2 * sweepInterval)
				if len(s.signals()) > 0 {
					t.Errorf("told were %q while the application runs", s.signals())
				}
				n.change(func() { s.all[0] = exitedApp("app", 0, 143) })
				n.after(2 * cleanInterval)
				if !slices.Equal(s.signals(), c.want) {
					t.Errorf("told were %q, want %q", s.signals(), c.want)
				}
			})
		})
	}
}

// An older sandbox of a pod does not take the place of the sandbox that is followed.
func TestSweep_olderSandboxOfAPodThatEnds_isNotFollowed(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.behave = func(p *fakeProxy) { p.readyAfter, p.drains = time.Millisecond, -1 }
		m, stop := agent()
		defer stop()
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		next := sandboxOf("u1")
		next.ID = "next"
		m.Follow(next)
		n.change(func() { n.ending = true })
		n.after(2 * sweepInterval)
		if !follows(m, next.Key()) || follows(m, sandboxOf("u1").Key()) {
			t.Error("the pod's older sandbox is followed")
		}
	})
}
