package shared

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// changes returns how long changes of pods have taken.
func (n *fakeNode) changes() (out []time.Duration) {
	n.change(func() { out = slices.Clone(n.took) })
	return out
}

func (n *fakeNode) changed(_ string, took time.Duration) {
	n.change(func() { n.took = append(n.took, took) })
}

// figures waits until a profile's figures are as wanted, but for what Reloads count.
func (n *fakeNode) figures(m *Manager, what string, want Figures) (got Figures) {
	n.t.Helper()
	n.eventually(what, func() bool {
		got = m.Figures()["edge"]
		want.Reloads = got.Reloads
		return cmp.Equal(want, got)
	})
	return got
}

// What an operator sees while pods join, one of them is refused, the profile is, and the proxy ends.
func TestFigures_podsComeAndGo_areCounted(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	m := n.agent()
	if f, there := m.Figures()["edge"]; there {
		t.Errorf("a profile that nobody has chosen, without a proxy: %+v", f)
	}
	pods := n.follow(m, "a", "b")
	n.figures(m, "both wait for the proxy", Figures{Waiting: 2})
	n.startProxy()
	f := n.figures(m, "both are served", Figures{Served: 2, Running: true, Newest: true})
	if took := n.changes(); len(took) != 2 || slices.Min(took) <= 0 || f.Reloads[Applied] == 0 || f.Reloads[Refused] != 0 {
		t.Errorf("both have joined: %+v, changes took %v", f, took)
	}
	bad := n.pod("c", func(p *fakePod) { p.annotations = map[string]string{"note": "refused"} })
	m.Follow(bad, "edge")
	if f = n.figures(m, "one is refused", Figures{Served: 2, Refused: 1, Running: true, Newest: true}); f.Reloads[Refused] == 0 || len(n.changes()) != 2 {
		t.Errorf("one is refused: %+v", f)
	}
	applied := f.Reloads[Applied]
	n.edit(bad, func(p *fakePod) { p.annotations = nil })
	m.Follow(bad, "edge")
	if f = n.figures(m, "all are served", Figures{Served: 3, Running: true, Newest: true}); f.Reloads[Applied] != applied+1 || len(n.changes()) != 3 {
		t.Errorf("all are served: %+v, %d applied before", f, applied)
	}
	n.setTemplate(m, configTemplate+"# refused\n")
	n.figures(m, "the profile is refused", Figures{Served: 3, Running: true})
	n.setTemplate(m, configTemplate+"# new\n")
	n.figures(m, "the next one is not", Figures{Served: 3, Running: true, Newest: true})
	n.change(func() { n.finding = func(context.Context) error { return errors.New("the runtime is away") } })
	n.stopProxy()
	n.figures(m, "the proxy has ended", Figures{Waiting: 3})
	n.change(func() { n.finding = nil })
	n.startProxy()
	n.figures(m, "it is back", Figures{Served: 3, Running: true, Newest: true})
	for _, s := range append(pods, bad) {
		n.edit(s, func(p *fakePod) { p.chosen = "none" })
	}
	m.Notify("edge")
	n.figures(m, "no pods, and the proxy runs", Figures{Running: true, Newest: true})
	n.stopProxy()
	n.eventually("nothing is left", func() bool { _, there := m.Figures()["edge"]; return !there })
}

// Each result is counted, and a change that the agent did not wait for is not measured.
func TestFigures_configurations_areCounted(t *testing.T) {
	t.Parallel()
	n, m, _ := newServing(t, "a")
	n.change(func() { n.deaf = func(text string) bool { return strings.Contains(text, "ns-b") } })
	b := n.follow(m, "b")[0]
	if f := n.figures(m, "one is not confirmed", Figures{Served: 1, Refused: 1, Running: true, Newest: true}); f.Reloads[Unconfirmed] != 1 || f.Reloads[Failed] != 0 {
		t.Errorf("not confirmed: %+v", f)
	}
	n.edit(b, func(p *fakePod) { p.chosen = "none" })
	n.change(func() { n.telling = func(context.Context) error { return errors.New("the runtime is away") } })
	n.follow(m, "c")
	n.eventually("the signal fails", func() bool { return m.Figures()["edge"].Reloads[Failed] > 0 })
	n.change(func() { n.telling, n.deaf = nil, func(string) bool { return false } })
	n.served(m, "a c")
	n.stop()
	before := len(n.changes())
	m = n.agent()
	for _, name := range []string{"a", "c"} {
		m.Follow(n.pods["uid-"+name].sandbox, "edge")
	}
	if f := n.figures(m, "an agent that starts", Figures{Served: 2, Running: true, Newest: true}); len(n.changes()) != before || f.Reloads[Applied] != 0 {
		t.Errorf("an agent that starts: %+v", f)
	}
	pause(t.Context(), 1200*time.Millisecond)
	n.follow(m, "d")
	n.served(m, "a c d")
	if f := n.figures(m, "one more", Figures{Served: 3, Running: true, Newest: true}); len(n.changes()) != before+1 || n.changes()[before] > 10*time.Second || f.Reloads[Applied] != 1 {
		t.Errorf("one has joined since: %+v", f)
	}
}
