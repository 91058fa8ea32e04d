package node

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
)

// A note is of one sandbox, and of a pod whose rules lead somewhere.
func TestApplied_anotherSandbox_replacesTheNote(t *testing.T) {
	dir := t.TempDir()
	l := newRoutesIn(t, dir)
	s := podnet.Sandbox{UID: "u1", ID: "s1"}
	set := func(now, wantBefore routeTarget, wantChanged bool) {
		t.Helper()
		if before, changed, err := l.applied(s, now); err != nil || changed != wantChanged || !before.equals(wantBefore) {
			t.Errorf("%+v: before %+v, changed %v, error %v", now, before, changed, err)
		}
	}
	own, shared := routeTarget{Profile: "own"}, routeTarget{Profile: "shared", Shared: true}
	set(routeTarget{}, routeTarget{}, false) // rules that never were
	set(shared, routeTarget{}, true)
	set(own, shared, true)
	set(own, own, false)
	if got, known := newRoutesIn(t, dir).of(s); !known || !got.equals(own) {
		t.Errorf("noted %+v", got)
	}
	if got, known := l.of(podnet.Sandbox{UID: "u1"}); !known || !got.equals(own) {
		t.Errorf("a sandbox whose ID is not known yet: %+v", got)
	}
	s.ID = "s2"
	if _, known := l.of(s); known {
		t.Error("the next sandbox has the route of the one before")
	}
	set(own, routeTarget{}, true)
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 || files[0].Name() != "u1.s2" {
		t.Errorf("notes %v, error %v", files, err)
	}
}

// A note that cannot be written must not say what was before, and is written later.
func TestApplied_noteNotWritable_isWrittenLater(t *testing.T) {
	m := newChanging(t)
	m.must("it starts", "edge", false)
	m.optOut()
	m.choose("other-user")
	name := m.cluster.routes.path(theSandbox().UID, theSandbox().ID)
	inTheWay := filepath.Join(name+unfinished, "x")
	if err := os.MkdirAll(inTheWay, 0o700); err != nil {
		t.Fatal(err)
	}
	m.must("no room", "other-user", false)
	if l := newRoutesIn(t, m.dir); l.known[theSandbox().UID].Now.Profile == "edge" {
		t.Error("the next agent takes the rules to lead to edge")
	}
	if err := os.RemoveAll(name + unfinished); err != nil {
		t.Fatal(err)
	}
	m.must("there is room again", "other-user", false)
	if l := newRoutesIn(t, m.dir); l.known[theSandbox().UID].Now.Profile != "other-user" {
		t.Errorf("the next agent takes the rules to lead to %+v", l.known)
	}
}

// Notes of sandboxes that have ended while no agent ran are removed, and what is no note harms nobody.
func TestPrune_endedSandboxes_haveNoNotes(t *testing.T) {
	dir := t.TempDir()
	l := newRoutesIn(t, dir)
	for _, id := range []string{"1", "2"} {
		if _, changed, err := l.applied(podnet.Sandbox{UID: "u" + id, ID: "s" + id}, routeTarget{Profile: "edge"}); err != nil || !changed {
			t.Fatalf("changed %v, error %v", changed, err)
		}
	}
	for name, text := range map[string]string{"u3.s3": "{", "u4.s4.new": "{}", "u5": "{}"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if l = newRoutesIn(t, dir); len(l.known) != 2 {
		t.Fatalf("noted %v", l.known)
	}
	ctx, cancel := context.WithCancel(t.Context())
	asked := 0
	l.prune(ctx, func(_ context.Context, sandbox string) (bool, error) {
		if asked++; asked == 2 {
			cancel()
		}
		return sandbox == "s1", nil
	})
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 || files[0].Name() != "u1.s1" || len(l.known) != 1 {
		t.Errorf("files %v, known %v, error %v", files, l.known, err)
	}
}

// A pod gets a new sandbox while the old one is asked about.
func TestPrune_sandboxMadeAnew_keepsItsNote(t *testing.T) {
	l := newRoutesIn(t, t.TempDir())
	set := func(sandbox string) {
		if _, _, err := l.applied(podnet.Sandbox{UID: "u1", ID: sandbox}, routeTarget{Profile: "edge"}); err != nil {
			t.Error(err)
		}
	}
	set("s1")
	ctx, cancel := context.WithCancel(t.Context())
	l.prune(ctx, func(context.Context, string) (bool, error) {
		set("s2")
		cancel()
		return false, nil
	})
	if _, known := l.of(podnet.Sandbox{UID: "u1", ID: "s2"}); !known {
		t.Errorf("known %v", l.known)
	}
}

// Rules change for the proxy that serves, and are what they were until they have changed, whatever agent runs.
func TestChange_anotherProxy_isDueUntilApplied(t *testing.T) {
	dir := t.TempDir()
	r, s := newRoutesIn(t, dir), theSandbox()
	first, next := intent.ManagedProxy{Profile: "edge", OutboundPort: 15001}, intent.ManagedProxy{Profile: "edge", OutboundPort: 15011}
	change := func(step string, to intent.ManagedProxy, serves, wantApplied, wantChanged bool) {
		t.Helper()
		if applied, changed, err := r.change(s, to, serves); err != nil || applied != wantApplied || changed != wantChanged {
			t.Errorf("%s: applied %v, changed %v, error %v", step, applied, changed, err)
		}
	}
	apply := func(to intent.ManagedProxy) {
		t.Helper()
		if _, _, err := r.applied(s, routeTarget{Profile: to.Profile, Proxy: &to}); err != nil {
			t.Error(err)
		}
	}
	change("no rules, and it does not serve", first, false, true, false)
	apply(first)
	change("the same", first, true, true, false)
	change("another one serves", next, true, false, true)
	change("it is due", next, true, false, false)
	apply(first) // which began before
	change("the rules are the former ones", next, true, false, false)
	r = newRoutesIn(t, dir)
	change("another agent", next, true, false, false)
	apply(next)
	change("applied", next, true, true, false)
	r = newRoutesIn(t, dir)
	change("another agent, applied", next, true, true, false)
	change("of another profile, which the pod does not have", intent.ManagedProxy{Profile: "other"}, true, true, false)
	if to, _ := r.of(s); to.Proxy.OutboundPort != 15011 {
		t.Errorf("the rules lead to %+v", to.Proxy)
	}
	r = newRoutesIn(t, t.TempDir())
	change("no rules, and it serves", first, true, false, true)
}
