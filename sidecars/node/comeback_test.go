package node

import (
	"testing"
)

// A pod chooses a shared proxy again that is about to let it go: its rules stay where they lead, and the shared proxy sees the new choice.
func TestAPodComesBackToAProxyThatLetsItGo(t *testing.T) {
	m := newMoving(t)
	m.choose("shared")
	m.must("it starts", "shared", "", "", true)
	m.node.serving["shared"] = true
	m.own("edge")
	m.choose("edge")
	m.must("it has chosen its own", "edge", "edge", "", false)
	m.choose("shared")
	held := false
	m.node.leaving = func() { held = m.moves.hold("shared", theSandbox()) }
	if got, _ := m.visit(); got != "edge" || !held {
		t.Errorf("the rules lead to %q while the shared proxy lets the pod go, and it sees the pod come back: %v", got, held)
	}
	if m.moves.hold("shared", theSandbox()) {
		t.Error("the shared proxy keeps a pod whose rules lead elsewhere")
	}
	m.node.leaving = nil
	m.must("it is served again", "shared", "", "", true)

	m.choose("edge") // the own proxy was told to drain just now, and still says that it is ready
	if got, _ := m.visit(); got != "shared" {
		t.Errorf("the rules lead to %q, whose proxy drains", got)
	}
	m.own("edge")
	m.must("it answers again", "edge", "edge", "", false)
	m.choose("shared")
	m.must("there", "shared", "", "", true)
	m.own("edge")
	m.moves.aim("u1", "edge") // rules are about to lead there
	if c, err := m.cluster().Choice(t.Context(), theSandbox()); err != nil || c.Name != "edge" || c.Profile == nil {
		t.Errorf("the pod's own proxies are told %+v, error %v", c, err)
	}
	if !m.reports.ownOffers(theSandbox(), "edge") {
		t.Error("the own proxy, which stays, is not offered")
	}
}
