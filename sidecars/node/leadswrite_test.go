package node

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
)

// Where the rules led before is remembered for the same sandbox only, and until that proxy has drained, whatever else changes.
func TestWhatALeadHasTakenOverFrom(t *testing.T) {
	dir := t.TempDir()
	l, err := newLeads(dir)
	if err != nil {
		t.Fatal(err)
	}
	s := podnet.Sandbox{UID: "u1", ID: "s1"}
	own, shared := lead{Profile: "own", Drain: 30 * time.Second}, lead{Profile: "shared", Shared: true, Group: 1337, Drain: time.Minute}
	set := func(now lead, wantChanged bool) {
		t.Helper()
		if _, changed, err := l.set(s, now); err != nil || changed != wantChanged {
			t.Errorf("%+v: changed %v, error %v", now, changed, err)
		}
	}
	set(lead{}, false) // rules that never were
	set(shared, true)
	set(own, true)
	own.Drain = 40 * time.Second // the profile has changed
	set(own, true)
	set(own, false)
	got, known := l.of(s)
	if !known || got.Now != own || got.Before != shared || !got.draining(time.Now()) || got.draining(time.Now().Add(time.Minute)) {
		t.Errorf("noted %+v", got)
	}
	if got.draining(got.Since.Add(-time.Hour)) {
		t.Error("it drains for an hour more, since the clock was set back")
	}
	if got, known = l.of(podnet.Sandbox{UID: "u1"}); !known || got.Sandbox != "s1" {
		t.Errorf("a sandbox whose ID is not known yet: %+v", got)
	}
	s.ID = "s2"
	set(own, true)
	if got, known = l.of(s); !known || got.Before != (lead{}) {
		t.Errorf("another sandbox has taken over from %+v", got.Before)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 || files[0].Name() != "u1.s2" {
		t.Errorf("notes %v, error %v", files, err)
	}
}

// A note that cannot be written must not say what was before, and is written later.
func TestANoteThatCannotBeWritten(t *testing.T) {
	m := newMoving(t)
	m.must("it starts", "edge", "edge", "", false)
	m.own("edge")
	m.choose("shared")
	m.node.serving["shared"] = true
	name := m.moves.leads.path(theSandbox().UID, theSandbox().ID)
	inTheWay := filepath.Join(name+unfinished, "x")
	if err := os.MkdirAll(inTheWay, 0o700); err != nil {
		t.Fatal(err)
	}
	m.must("the shared one serves it", "shared", "", "", true)
	if l, err := newLeads(m.dir); err != nil || l.known[theSandbox().UID].Now.Profile == "edge" {
		t.Errorf("the next agent takes the rules to lead to edge, error %v", err)
	}
	if err := os.RemoveAll(name + unfinished); err != nil {
		t.Fatal(err)
	}
	m.must("there is room again", "shared", "", "", true)
	if l, err := newLeads(m.dir); err != nil || l.known[theSandbox().UID].Now.Profile != "shared" {
		t.Errorf("the next agent takes the rules to lead to %+v, error %v", l.known, err)
	}
}

// Proxies of the pod's own are known by their user. The group of one that drains would let the application's traffic through.
func TestTheRulesDoNotKnowTheGroupOfAnOwnProxyThatDrains(t *testing.T) {
	m := newMoving(t)
	m.must("it starts", "edge", "edge", "", false)
	m.own("edge")
	m.choose("edge-2")
	m.own("edge-2")
	m.must("the other one is ready", "edge-2", "edge-2", "", false)
	if got := m.Managed(t.Context(), theSandbox(), "edge-2", m.pod, m.ns); got.GID != 0 || got.UID != 1337 {
		t.Errorf("the rules know %+v", got)
	}
}

// While the runtime makes a sandbox, its ID may not be known yet: then the pod's last sandbox decides which proxy is ready.
func TestASandboxWithoutAnIDYet(t *testing.T) {
	m := newMoving(t)
	m.choose("shared")
	m.must("it starts", "shared", "", "", true)
	m.node.serving["shared"] = true
	m.choose("edge")
	unnamed := theSandbox()
	unnamed.ID = ""
	if got := m.Managed(t.Context(), unnamed, "edge", m.pod, m.ns); got.Profile != "shared" {
		t.Errorf("before its own proxy is ready, the rules lead to %q", got.Profile)
	}
	m.own("edge")
	if got := m.Managed(t.Context(), unnamed, "edge", m.pod, m.ns); got.Profile != "edge" {
		t.Errorf("the rules lead to %q", got.Profile)
	}
}

// A proxy that the pod leaves has the time to finish its connections that its profile says, or the usual one if that is not known.
func TestHowLongAProxyThatIsLeftMayDrain(t *testing.T) {
	m := newMoving(t)
	m.choose("edge-2")
	m.must("it starts", "edge-2", "edge-2", "", false)
	m.own("edge-2")
	drain := func(want time.Duration) {
		t.Helper()
		if c, err := m.cluster().Choice(t.Context(), theSandbox()); err != nil || !c.Leaves || c.Name != "" || c.Drain != want {
			t.Errorf("told %+v, error %v", c, err)
		}
	}
	m.choose("shared")
	m.node.serving["shared"] = true
	m.must("it has moved", "shared", "", "", true)
	drain(30 * time.Second)
	m.choose("shared-2")
	m.node.serving["shared-2"] = true
	m.must("it has moved on", "shared-2", "", "", true)
	drain(defaultDrain)
	m.Led(theSandbox(), "")
	drain(defaultDrain)
	m.choose(intent.SidecarNone)
	if c, err := m.cluster().Choice(t.Context(), theSandbox()); err != nil || !c.OptedOut || c.Leaves || c.Name != "" {
		t.Errorf("opted out: told %+v, error %v", c, err)
	}
	m.choose("edge")
	m.pod.Annotations[intent.KeyInitialize] = "false"
	if c, err := m.cluster().Choice(t.Context(), theSandbox()); err != nil || !c.OptedOut || c.Profile != nil {
		t.Errorf("without rules: told %+v, error %v", c, err)
	}
}
